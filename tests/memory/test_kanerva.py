"""The Dynamic Kanerva Machine's two writers, against NumPy loops and against variational Bayes."""

from operator import itemgetter

import numpy as np
import pytest
import torch

from memory.zoo import close, covariance, normal
from vbmem import load_memory, save_memory
from vbmem.memory import GaussianMemory, KanervaMemory

T, C, K = 7, 5, 3
CODES = normal(T, C)


@pytest.fixture
def memory() -> KanervaMemory:
    return KanervaMemory(C, K, 0.4, noise_var=0.7, row_mean=normal(K, C, seed=1), row_var=covariance(K, seed=2))


def project(z, R, sigma2):
    return np.linalg.solve(R @ R.T + sigma2 * np.eye(len(R)), R @ z)


def test_the_online_write_is_recursive_least_squares(memory):
    R, U, sigma2 = memory.row_mean.numpy().copy(), memory.row_var.numpy().copy(), 0.7
    weights = []
    for z in CODES.numpy():
        w = project(z, R, sigma2)
        gain = U @ w / (w @ U @ w + sigma2)
        R = R + np.outer(gain, z - R.T @ w)
        U = U - np.outer(gain, U @ w)
        weights.append(w)
    state, addresses = memory.write(CODES)
    close(state.row_mean[0], R)
    close(state.row_cov[0], U)
    close(addresses.weight_mean[:, 0], np.array(weights))
    close(addresses.weight_cov[0], 0.4 * np.eye(K))
    assert (addresses.assignment == 1).all()


@pytest.mark.parametrize("iterations", [1, 2, 9])
def test_the_iterative_write_refits_all_frames(memory, iterations):
    R0, U0, sigma2, Z = memory.row_mean.numpy(), memory.row_var.numpy(), 0.7, CODES.numpy()
    R = R0
    for _ in range(iterations):
        W = np.array([project(z, R, sigma2) for z in Z])
        U = np.linalg.inv(np.linalg.inv(U0) + W.T @ W / sigma2)
        R = U @ (np.linalg.inv(U0) @ R0 + W.T @ Z / sigma2)
    state, addresses = memory.write_iterative(CODES, iterations)
    close(state.row_mean[0], R)
    close(state.row_cov[0], U)
    close(addresses.weight_mean[:, 0], W)


def test_addressing_a_written_memory_is_a_projection(memory):
    state, _ = memory.write(CODES)
    addresses = memory.address(state, CODES)
    expected = np.array([project(z, state.row_mean[0].numpy(), 0.7) for z in CODES.numpy()])
    close(addresses.weight_mean[:, 0], expected)
    mask = torch.tensor([True] * 5 + [False] * 2)
    assert memory.address(state, CODES, mask).assignment.flatten().tolist() == [1.0] * 5 + [0.0] * 2


def test_variational_bayes_has_the_higher_bound():
    """Figure 2: same model, same prior; the ratio of the paper is at least 1.6."""
    rows = normal(K, C, seed=3)
    codes = normal(32, K, seed=4) @ rows + normal(32, C, seed=5)
    row_mean = normal(K, C, seed=1)
    kanerva, gaussian = KanervaMemory(C, K, row_mean=row_mean), GaussianMemory(C, K, row_mean=row_mean)
    best = gaussian.bound(codes, *gaussian.write(codes, 50, "prior")).total
    for written in (kanerva.write(codes), kanerva.write_iterative(codes)):
        assert kanerva.bound(codes, *written).total < 1.05 * best  # both negative


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_a_batch_is_a_loop(memory, batch):
    codes = normal(*batch, T, C)
    for write in (memory.write, memory.write_iterative):
        state, addresses = write(codes)
        for index in np.ndindex(*batch):
            one_state, one_addresses = write(codes[index])
            close(state.map(itemgetter(index)), one_state)
            close(addresses.map(itemgetter(index)), one_addresses)


def test_the_default_rows_are_always_the_same_small_draw():
    first, second = KanervaMemory(200, 32), KanervaMemory(200, 32)
    assert isinstance(first.row_mean, torch.Tensor)
    assert torch.equal(first.row_mean, torch.as_tensor(second.row_mean))
    assert first.row_mean.std().item() == pytest.approx(0.05, rel=0.05)
    state, _ = first.write(normal(6, 200))
    assert (state.row_mean.squeeze(0) - first.row_mean).abs().max() > 0.1  # from R_0 = 0 nothing would be written


def test_the_default_rows_leave_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    KanervaMemory(5, 3)
    assert torch.rand(1) == expected


def test_a_saved_memory_can_be_resized_as_before(tmp_path):
    memory = KanervaMemory(5, 3)
    save_memory(tmp_path / "memory.safetensors", memory, memory.prior_state())
    loaded, _ = load_memory(tmp_path / "memory.safetensors")
    resized, expected = (torch.as_tensor(x.resize(rows=6).row_mean) for x in (loaded, memory))
    assert torch.equal(resized, expected)
