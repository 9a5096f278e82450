"""The guarded inverse, log-determinant and Cholesky factor."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from vbmem import linalg
from vbmem.errors import NonFiniteError, NotPositiveDefiniteError, NumericalError
from vbmem.linalg import cholesky, common_basis, eigh, inverse_and_logdet

guarded = pytest.mark.parametrize("function", [inverse_and_logdet, cholesky])


def root(*batch: int, size: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(*batch, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive_definite(roots: Tensor) -> Tensor:
    return roots @ roots.mT + torch.eye(roots.shape[-1], dtype=roots.dtype)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("size", [1, 4, 40])
def test_inverse_log_det_and_factor_are_numpys(batch, size):
    matrix = positive_definite(root(*batch, size=size))
    inverse, logdet = inverse_and_logdet(matrix, "A")
    np.testing.assert_allclose(inverse.numpy(), np.linalg.inv(matrix.numpy()), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logdet.numpy(), np.linalg.slogdet(matrix.numpy())[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        cholesky(matrix, "A").numpy(), np.linalg.cholesky(matrix.numpy()), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("batch", [(), (4,), (3, 5), (0,)])
def test_eigenvectors_are_those_of_every_matrix_however_many_these_are(batch, monkeypatch):
    monkeypatch.setattr(linalg, "AT_ONCE", 4)
    matrix = positive_definite(root(*batch))
    for found, expected in zip(eigh(matrix), torch.linalg.eigh(matrix), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_inverse_is_symmetric_to_the_bit():
    inverse, _ = inverse_and_logdet(positive_definite(root(5, size=7)), "A")
    assert (inverse == inverse.mT).all()


def test_a_matrix_without_entries_has_log_det_0():
    inverse, logdet = inverse_and_logdet(torch.zeros(3, 0, 0, dtype=torch.float64), "A")
    assert inverse.shape == (3, 0, 0)
    assert logdet.tolist() == [0, 0, 0]


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_the_gradient_is_right_and_so_is_its_own(check):
    def both(roots):
        return inverse_and_logdet(positive_definite(roots), "A")

    assert check(both, root(2, size=3).requires_grad_(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("of_inverse", "of_logdet"), [(1, 2), (1, None), (None, 2)])
def test_the_gradient_is_symmetric_and_that_of_torch(of_inverse, of_logdet):
    weights = root(seed=1)

    def gradient(function):
        matrix = positive_definite(root()).requires_grad_()
        inverse, logdet = function(matrix)
        wanted = [] if of_inverse is None else [of_inverse * (weights * inverse).sum()]
        wanted += [] if of_logdet is None else [of_logdet * logdet]
        (result,) = torch.autograd.grad(sum(wanted), matrix)
        return result

    actual = gradient(lambda matrix: inverse_and_logdet(matrix, "A"))
    expected = gradient(lambda matrix: (torch.linalg.inv(matrix), torch.logdet(matrix)))
    torch.testing.assert_close(actual, (expected + expected.mT) / 2, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(actual, actual.mT, rtol=1e-14, atol=1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [1, 6, 16, 17, 20, 32, 50, 64, 65])
def test_cuda_gives_what_the_cpu_gives(size):
    def results(device, dtype):
        matrix = positive_definite(root(3, size=size)).to(device, dtype).requires_grad_()
        inverse, logdet = inverse_and_logdet(matrix, "A")
        alone, both = (
            torch.autograd.grad(inverse.square().sum() + weight * logdet.sum(), matrix, retain_graph=True)[0]
            for weight in (0, 1)
        )
        return [result.detach().cpu().double() for result in (inverse, logdet, alone, both)]

    for actual, expected in zip(results("cuda", torch.float32), results("cpu", torch.float64), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


# --- The guard ------------------------------------------------------------------------------------------------------


def nearly_singular(deficit: float, dtype: torch.dtype) -> Tensor:
    """diag(1, -deficit) in units of the rounding error: not positive definite, by a hair."""
    return torch.diag(torch.tensor([1.0, -deficit * torch.finfo(dtype).eps], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deficit", [5, 50, 500])
def test_jitter_mends_what_rounding_broke_and_nothing_else(dtype, deficit):
    good = positive_definite(root(size=2)).to(dtype)
    bad = nearly_singular(deficit, dtype)
    factors = cholesky(torch.stack([bad, good]), "A")
    assert (factors[1] == torch.linalg.cholesky(good)).all()
    assert (factors[0] == cholesky(bad, "A")).all()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(factors[0] @ factors[0].mT, bad, rtol=0, atol=20 * deficit * eps)
    inverses, logdets = inverse_and_logdet(torch.stack([bad, good]), "A")
    assert (inverses[1] == inverse_and_logdet(good, "A")[0]).all()
    assert logdets.isfinite().all()


def test_every_item_gets_the_least_jitter_that_mends_it():
    items = torch.stack([nearly_singular(deficit, torch.float64) for deficit in (5, 50, 500, 5)])
    alone = torch.stack([cholesky(item, "A") for item in items])
    assert (cholesky(items, "A") == alone).all()


@guarded
def test_a_matrix_jitter_cannot_mend_is_named(function):
    good = positive_definite(root())
    with pytest.raises(NotPositiveDefiniteError, match=r"the covariance of the test .*not positive definite.*float64"):
        function(torch.stack([good, -good]), "the covariance of the test")


@guarded
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_is_named(function, value):
    matrix = positive_definite(root())
    matrix[1:, 1:] = value
    with pytest.raises(NonFiniteError, match="the covariance of the test holds NaN or infinity"):
        function(matrix, "the covariance of the test")


def test_both_errors_are_arithmetic_errors():
    assert issubclass(NotPositiveDefiniteError, NumericalError)
    assert issubclass(NonFiniteError, NumericalError)
    assert issubclass(NumericalError, ArithmeticError)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_a_compiled_graph_computes_the_same_and_names_the_same():
    good = positive_definite(root(2))
    torch.compiler.reset()
    compiled = torch.compile(inverse_and_logdet, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(compiled(good, "A"), inverse_and_logdet(good, "A"), strict=True):
        assert (actual == expected).all()
    with pytest.raises(NotPositiveDefiniteError, match="A is not positive definite"):
        compiled(-good, "A")


def test_the_operator_keeps_torchs_rules():
    """Fake tensors, strides and autograd registration, as the compiler expects them."""
    from vbmem.linalg import _inverse_and_logdet

    torch.library.opcheck(_inverse_and_logdet, (positive_definite(root(2)).requires_grad_(), "A"))


def test_a_common_basis_makes_one_matrix_the_identity_and_the_other_diagonal():
    metric, matrix = positive_definite(root(3)), positive_definite(root(3, seed=1))
    basis, values, logdet = common_basis(metric, matrix)
    torch.testing.assert_close(basis.mT @ metric @ basis, torch.eye(4, dtype=torch.float64).expand(3, 4, 4))
    torch.testing.assert_close(basis.mT @ matrix @ basis, torch.diag_embed(values))
    torch.testing.assert_close(logdet, metric.logdet())


@pytest.mark.parametrize("matrix", [positive_definite(root(2, seed=1)), positive_definite(root(2))])
def test_the_gradient_of_a_function_of_the_values_is_right_even_where_they_are_equal(matrix):
    def function(metric_root, matrix):
        _, values, logdet = common_basis(positive_definite(metric_root), 0.5 * (matrix + matrix.mT))
        return (1 / (1 + values)).sum(-1), logdet

    assert gradcheck(function, [root(2).requires_grad_(), matrix.requires_grad_()], rtol=1e-5, atol=1e-7)


def test_the_gradient_of_the_basis_is_right_where_values_differ():
    def inverse_of_sum(metric_root, matrix):
        basis, values, _ = common_basis(positive_definite(metric_root), 0.5 * (matrix + matrix.mT))
        return basis @ torch.diag_embed(1 / (1 + values)) @ basis.mT

    matrix = positive_definite(root(2, seed=1)).requires_grad_()
    assert gradcheck(inverse_of_sum, [root(2).requires_grad_(), matrix], rtol=1e-5, atol=1e-7)


def test_where_nothing_may_wait_a_failed_factor_is_nan(monkeypatch):
    monkeypatch.setattr(linalg, "may_wait", lambda _: False)
    matrices = torch.stack([torch.eye(2), -torch.eye(2)])
    factor = cholesky(matrices, "a matrix")
    assert torch.equal(factor[0], torch.eye(2))
    assert factor[1].isnan().all()
