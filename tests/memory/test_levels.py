"""A look at many clusters from few to all, and what it finds."""

import pytest
import torch

from memory.zoo import close, normal, variances
from vbmem.memory import MixtureMemory, levels
from vbmem.memory.blocks import Projection
from vbmem.memory.levels import Levels
from vbmem.memory.neighbours import Clusters

CLUSTERS, SIZE = 200, 4
CODES = normal(50, SIZE, seed=1)


def levels_of(salt=0, rows=0, noise_var=0.5):
    """Clusters at random, in levels of 13, 50 and 200 where TOP is 20."""
    memory = MixtureMemory(SIZE, rows, CLUSTERS, noise_var=noise_var)
    state = memory.first_state(normal(CLUSTERS, SIZE), "data", generator=torch.Generator().manual_seed(0))
    clusters = Clusters.of(Projection.of(state, memory.prior(CODES)))
    return Levels(clusters, state.loc_mean, 3, salt)


@pytest.fixture
def few(monkeypatch):
    for name, value in {"TOP": 20, "PROBES": 2, "NEIGHBOURS": 6}.items():
        monkeypatch.setattr(levels, name, value)


def exact(found, count):
    """All clusters, from the best, for every code, and how good they are."""
    everything = torch.arange(CLUSTERS).expand(len(CODES), -1)
    met = found.clusters.meet(CODES, everything)[..., -1]
    return met.topk(count, dim=-1)


@pytest.mark.parametrize("noise_var", [0.5, variances(CLUSTERS, SIZE)])
@pytest.mark.parametrize("rows", [0, 2])
def test_with_all_clusters_on_the_first_level_the_best_are_found(rows, noise_var):
    one = levels_of(rows=rows, noise_var=noise_var)
    assert one.sizes == [CLUSTERS]
    values, indices = exact(one, 3)
    found = one.find(CODES, 3)
    assert torch.equal(found.clusters, indices)
    close(found.met[..., -1], values)


def test_each_level_is_a_part_of_the_next_and_knows_its_places(few):
    several = levels_of(salt=7)
    assert several.sizes == [13, 52, 200]
    before: set[int] = set()
    for size in several.sizes:
        on_level = several._on_level(size)
        assert torch.equal(several._place(on_level, size), torch.arange(size))
        assert before <= set(on_level.tolist())
        before = set(on_level.tolist())
    assert len(before) == CLUSTERS
    for size, members in zip(several.sizes[1:], several.members, strict=True):
        assert set(members.flatten().tolist()) <= set(several._on_level(size).tolist())


def test_clusters_are_found_once_and_never_worse_than_those_known(few):
    several = levels_of()
    known = exact(several, 4).indices[:, 1:]  # the best but for one
    but = known[:, 0]
    found = several.find(CODES, 3, known, but)
    assert all(len(set(row)) == 3 for row in found.clusters.tolist())
    assert not (found.clusters == but.unsqueeze(-1)).any()
    assert (found.met[:, 1, -1] >= several.clusters.meet(CODES, known)[:, 2, -1] - 1e-12).all()


def test_what_one_look_misses_another_sees(few):
    known, missed = None, []
    for salt in range(4):
        several = levels_of(salt)
        found = several.find(CODES, 3, known)
        known = found.clusters
        missed.append(int((found.clusters != exact(several, 3).indices).sum()))
    assert missed[0] > missed[-1]
    assert missed == sorted(missed, reverse=True)


def test_neighbours_are_other_clusters_that_lie_near(few):
    several = levels_of()
    found = several.neighbours(None)
    assert found.shape == (CLUSTERS, 6)
    assert not (found == torch.arange(CLUSTERS).unsqueeze(-1)).any()
    distances = torch.cdist(several.locations, several.locations)
    assert distances.gather(-1, found).mean() < distances.sort(-1).values[:, 1:15].mean()
