"""How many clusters pictures need: the bound, and the distance of samples from pictures that were left out."""

import pytest
import torch

from vbmem.app.shared import open_model
from vbmem.app.sizes import energy_distance, try_sizes
from vbmem.data import examples


def test_the_bound_rises_to_a_best_size_and_falls() -> None:
    model = open_model("cifar10-mixture")
    codes = model.network.content(model.encode(examples.draw("a temple", 64, model.frame, seed=0)).mean)
    trials = {trial.size: trial for trial in try_sizes(model, codes, "clusters", 7)}
    assert max(trials) == 64  # a memory of more clusters than pictures is not worth a point
    assert 7 in trials
    assert 1 < max(trials, key=lambda size: trials[size].bound) < 64
    assert all(trial.distance is not None and trial.distance > 0 for trial in trials.values())
    assert [trial.distance for trial in try_sizes(model, codes[:9], "clusters", 2)] == [None] * 5


def test_the_energy_distance_is_zero_between_samples_of_one_distribution_only() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(400, 5, generator=generator) for _ in range(2))
    assert energy_distance(one, other) == pytest.approx(0, abs=0.02)
    assert energy_distance(one, other + 1) > 0.5
    assert energy_distance(one, 0.2 * other) > 0.2
