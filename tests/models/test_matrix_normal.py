"""The matrix normal against torch's multivariate normal of vec(M)."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from models.matrix_normal import MatrixNormal


def random_pair(*batch: int, rows: int = 3, columns: int = 4) -> tuple[MatrixNormal, MultivariateNormal]:
    loc = torch.randn(*batch, rows, columns, dtype=torch.float64)
    root = torch.randn(*batch, rows, rows, dtype=torch.float64)
    cov = root @ root.mT + 0.5 * torch.eye(rows, dtype=torch.float64)
    vec_cov = torch.stack([torch.kron(torch.eye(columns, dtype=torch.float64), u) for u in cov.reshape(-1, rows, rows)])
    flat = MultivariateNormal(loc.mT.flatten(-2), vec_cov.reshape(*batch, rows * columns, rows * columns))
    return MatrixNormal(loc, cov), flat


def test_density_and_entropy_are_those_of_the_vectorised_normal() -> None:
    torch.manual_seed(0)
    matrix, flat = random_pair(2)
    value = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(matrix.log_prob(value), flat.log_prob(value.mT.flatten(-2)))
    torch.testing.assert_close(matrix.entropy(), flat.entropy())
    torch.testing.assert_close(matrix.variance.mT.flatten(-2), flat.variance)
    torch.testing.assert_close(matrix.mean, matrix.mode)


def test_kl_is_registered_and_equals_the_vectorised_one() -> None:
    torch.manual_seed(1)
    (q, flat_q), (p, flat_p) = random_pair(2), random_pair(2)
    torch.testing.assert_close(kl_divergence(q, p), kl_divergence(flat_q, flat_p))
    torch.testing.assert_close(kl_divergence(q, q), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_samples_have_the_stated_moments_and_carry_gradients() -> None:
    torch.manual_seed(2)
    matrix, flat = random_pair(rows=2, columns=2)
    samples = matrix.rsample((40_000,)).mT.flatten(-2)
    error = 5 * flat.variance.max() / 200
    assert (samples.mean(0) - flat.mean).abs().max() < error
    assert (samples.T.cov() - flat.covariance_matrix).abs().max() < 5 * error
    loc = torch.zeros(2, 3, requires_grad=True)
    MatrixNormal(loc, torch.eye(2)).rsample().sum().backward()
    torch.testing.assert_close(loc.grad, torch.ones(2, 3))


def test_expands_like_other_distributions() -> None:
    matrix, _ = random_pair()
    assert matrix.expand((5, 2)).sample((7,)).shape == (7, 5, 2, 3, 4)


@pytest.mark.parametrize(("loc", "cov"), [((3,), (3, 3)), ((3, 4), (4, 4)), ((3, 4), (3, 2))])
def test_refuses_shapes_that_do_not_fit(loc: tuple[int, ...], cov: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected loc \[.., K, C\]"):
        MatrixNormal(torch.zeros(loc), torch.ones(cov))


def test_refuses_an_indefinite_covariance() -> None:
    with pytest.raises(ValueError, match="PositiveDefinite"):
        MatrixNormal(torch.zeros(2, 3), -torch.eye(2), validate_args=True)
