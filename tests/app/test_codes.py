"""Embeddings in a memory: clusters, scores, and what is taken home."""

import base64
import csv
import io
import re

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vbmem.app.codes import analyse, shown

SEED = np.random.default_rng(0)
GROUP = np.arange(120) % 3


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    """Three groups, and one code that is like nothing else: the last."""
    centres = 6 * SEED.normal(size=(3, 8))
    codes = centres[GROUP] + SEED.normal(size=(120, 8))
    return np.concatenate([codes, [np.full(8, 25.0)]]).astype(np.float32)


def test_groups_are_found_and_what_is_unlike_them_is_new(codes: np.ndarray) -> None:
    analysis = analyse(codes, 3)
    for group in range(3):
        members = analysis.clusters[:-1][torch.from_numpy(group == GROUP)]
        assert (members == members.mode().values).float().mean() > 0.9
    assert int(analysis.scores.argmin()) == 120
    assert bool(analysis.new[120])
    assert int(analysis.new.sum()) < 12
    assert analysis.points.shape == (121, 2)


@pytest.mark.parametrize("shape", [(30, 12), (12, 30)])
def test_points_are_those_of_a_principal_component_analysis(shape: tuple[int, int]) -> None:
    codes = SEED.normal(size=shape).astype(np.float32)
    expected = PCA(2).fit_transform(codes)
    np.testing.assert_allclose(analyse(codes, 2).points.abs().numpy(), np.abs(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(10, 1), (10, 2), (11, 40)])
def test_few_codes_of_any_size_can_be_shown(shape: tuple[int, int]) -> None:
    codes = SEED.normal(size=shape).astype(np.float32)
    assert "<svg" in shown(analyse(codes, 24), "a.npy")
    assert "<svg" in shown(analyse(np.ones(shape, np.float32), 3), "a.npy")


def test_all_assignments_are_taken_home_in_their_order(codes: np.ndarray) -> None:
    page = shown(analyse(codes, 3), "<b>${1}.csv")
    assert "<b>${" not in page
    link = re.search(r'href="data:text/csv;base64,([^"]+)"', page)
    assert link is not None
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(link[1]).decode())))
    assert [int(row["row"]) for row in rows] == list(range(1, 122))
    assert {int(row["cluster"]) for row in rows} <= {1, 2, 3}
    assert rows[-1]["new"] == "1"
    assert page.count("<circle") == 121
