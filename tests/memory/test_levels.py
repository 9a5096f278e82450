"""A look at many clusters from few to all, and what it finds."""

import pytest
import torch

from memory.zoo import normal, variances
from vbmem.memory import MixtureMemory, levels
from vbmem.memory.levels import Levels
from vbmem.memory.neighbours import Clusters
from vbmem.memory.projection import Projection

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
    for name, value in {"TOP": 20, "NEIGHBOURS": 6}.items():
        monkeypatch.setattr(levels, name, value)


def exact(several, count):
    """The best of all clusters for every code, int64 [n, count]."""
    everything = torch.arange(CLUSTERS).expand(len(CODES), -1)
    return several.clusters.best(CODES, everything, count).clusters


@pytest.mark.parametrize("noise_var", [0.5, variances(CLUSTERS, SIZE)])
@pytest.mark.parametrize("rows", [0, 2])
def test_with_all_clusters_on_the_first_level_the_best_are_found(rows, noise_var):
    one = levels_of(rows=rows, noise_var=noise_var)
    assert one.sizes == [CLUSTERS]
    assert torch.equal(one.find(CODES, 3), exact(one, 3))


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
        held = members[members < CLUSTERS].tolist()
        assert len(set(held)) == len(held)  # each is in one cell
        assert set(held) <= set(several._on_level(size).tolist())


@pytest.mark.parametrize("rows", [0, 2])
def test_clusters_are_found_once_the_best_first_without_those_that_are_not_to_be(few, rows):
    several = levels_of(rows=rows)
    but = exact(several, 1).squeeze(-1)
    found = several.find(CODES, 3, but)
    assert all(len(set(row)) == 3 for row in found.tolist())
    assert (found < CLUSTERS).all()
    assert not (found == but.unsqueeze(-1)).any()
    assert (several.clusters.meet(CODES, found)[..., -1].diff() <= 0).all()


def test_a_free_place_is_never_taken_for_a_cluster_however_unlikely_all_are(few):
    several = levels_of(noise_var=1e-8)
    rows = several.clusters.rows
    rows[:-1, -1, -1] = -torch.inf
    assert (several.find(CODES, 3) < CLUSTERS).all()


def test_what_one_look_misses_another_sees(few):
    missed, wanted = [], exact(levels_of(), 3)
    seen = torch.zeros_like(wanted, dtype=torch.bool)
    for salt in range(4):
        found = levels_of(salt).find(CODES, 3)
        seen |= (wanted.unsqueeze(-1) == found.unsqueeze(-2)).any(-1)
        missed.append(int((~seen).sum()))
    assert wanted.numel() / 4 > missed[0] > missed[1] > missed[-1]


def test_neighbours_are_other_clusters_that_lie_near(few):
    several = levels_of()
    found = several.neighbours()
    assert found.shape == (CLUSTERS, 6)
    assert not (found == torch.arange(CLUSTERS).unsqueeze(-1)).any()
    distances = torch.cdist(several.locations, several.locations)
    assert distances.gather(-1, found).mean() < distances.sort(-1).values[:, 1:15].mean()
