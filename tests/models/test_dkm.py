"""The Dynamic Kanerva Machine as a model: its write in NumPy, its read-out in distribution, its extra objective."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from models import oracle
from models.matrix_normal import MatrixNormal
from models.zoo import B, as_likely, close, close_terms, frames, make, recorded_draws
from vbmem.models import DKMConfig, FrameFormat


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_the_bound_equals_the_oracle(likelihood):
    model, pictures = make("dkm", likelihood), frames(binary=likelihood == "bernoulli")
    with recorded_draws() as draws:
        evidence = model(pictures)
    expected = oracle.dkm(model, pictures, *draws)
    close_terms({"log_likelihood": evidence.log_likelihood, **evidence.divergences}, expected)


def test_a_case_worked_by_hand():
    """One row, one frame, codes of two coordinates: w = R.z / (R.R + 1), s = w^2 + 1, U = 1/s, R += w (z - w R) / s."""
    model: Any = DKMConfig(code_size=2, rows=1, filters=8).build(FrameFormat(8, 1)).double().eval()
    z, r = (1.0, 2.0), (0.5, 0.5)
    model.embed = lambda pictures: torch.tensor([[z]], dtype=torch.float64)
    model.row_mean.copy_(torch.tensor([r]))
    w = (0.5 * 1 + 0.5 * 2) / (0.5 + 1)
    spread = w**2 + 1
    row = [a + w / spread * (b - w * a) for a, b in zip(r, z, strict=True)]
    final_w = sum(a * b for a, b in zip(row, z, strict=True)) / (sum(a * a for a in row) + 1)
    evidence = model(frames(1, 1))
    shift = sum((a - b) ** 2 for a, b in zip(row, r, strict=True))
    close(evidence.divergences["kl_rows"], 0.5 * (2 * (1 / spread - 1 + math.log(spread)) + shift))
    close(evidence.divergences["kl_weights"], 0.5 * (0.3 - 1 - math.log(0.3) + final_w**2), rtol=1e-6)


def test_addresses_have_the_variance_0_3_until_it_is_trained():
    model: Any = DKMConfig(code_size=4, rows=3, filters=8).build(FrameFormat(8, 1))
    assert model.address_log_std.exp().square().item() == pytest.approx(0.3)
    assert model.address_log_std.requires_grad


def test_every_seed_draws_a_prior_mean_of_its_own():
    def drawn(seed):
        torch.manual_seed(seed)
        return DKMConfig(code_size=40, rows=30, filters=8).build(FrameFormat(8, 1)).row_mean

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert float(drawn(1).std()) == pytest.approx(0.05, rel=0.1)


def test_with_a_mean_memory_what_is_read_depends_on_the_weights_alone():
    model, read = make("dkm", mean_memory=True), []
    model.address_log_std.data.fill_(-20.0)

    def score(codes, _):
        read.append(codes)
        return codes.sum((-1, -2))

    model.score = score
    with torch.no_grad():
        model(frames(), copies=2)
    close(read[0][:B], read[0][B:], rtol=1e-6)


def test_the_order_of_the_frames_matters_to_the_write():
    model, pictures = make("dkm"), frames()
    assert not torch.allclose(model(pictures).elbo, model(pictures.flip(1)).elbo)
    for term in ("kl_rows", "kl_weights"):
        forth, back = (model(x).divergences[term] for x in (pictures, pictures.flip(1)))
        assert not torch.allclose(forth, back)


class TestReadOut:
    """M'w of a fresh M ~ q(M) in every frame, drawn as R'w + sqrt(w'Uw) noise."""

    COUNT = 20_000

    def read(self, *, fixed_weights=False):
        """Draws [COUNT, T, C] of what is decoded; and R, U, the addresses [T, K] and their variance."""
        model, pictures = make("dkm"), frames(1, 3)
        if fixed_weights:
            model.address_log_std.data.fill_(-20.0)
        read = []

        def score(codes, _):
            read.append(codes)
            return codes.sum((-1, -2))

        model.score = score
        with torch.no_grad():
            model(pictures, self.COUNT)
            codes = model.embed(pictures)[0].numpy()
            R, U = oracle.kanerva_write(codes, model.row_mean.numpy(), np.eye(3))
            means = np.array([oracle.kanerva_address(z, R) for z in codes])
            var = torch.exp(2 * model.address_log_std)
        return read[0], *map(torch.from_numpy, (R, U, means)), var

    def test_given_the_weights_it_has_the_moments_of_a_drawn_memory(self):
        read, R, U, means, _ = self.read(fixed_weights=True)
        for t, w in enumerate(means):
            drawn = MatrixNormal(R, U).sample((self.COUNT,)).mT @ w
            for sample in (read[:, t], drawn):
                away = sample - R.T @ w
                as_likely(away, 0.0)
                covariance = (w @ U @ w) * torch.eye(5, dtype=torch.float64)
                as_likely(away.unsqueeze(-1) * away.unsqueeze(-2), covariance)
                as_likely(away**4, 3 * (w @ U @ w) ** 2)  # Gaussian

    def test_with_the_weights_drawn_too_it_has_the_moments_of_the_product(self):
        """Mean R'mu and covariance v R'R + (mu'U mu + v tr U) I."""
        read, R, U, means, var = self.read()
        torch.manual_seed(0)
        for t, mu in enumerate(means):
            weights = mu + var.sqrt() * torch.randn(self.COUNT, 3, dtype=torch.float64)
            drawn = torch.einsum("nkc,nk->nc", MatrixNormal(R, U).sample((self.COUNT,)), weights)
            expected = var * R.T @ R + (mu @ U @ mu + var * U.trace()) * torch.eye(5, dtype=torch.float64)
            for sample in (read[:, t], drawn):
                away = sample - R.T @ mu
                as_likely(away, 0.0)
                as_likely(away.unsqueeze(-1) * away.unsqueeze(-2), expected)

    def test_frames_are_read_independently(self):
        read, *_ = self.read(fixed_weights=True)
        away = read - read.mean(0)
        as_likely(away[:, 0].unsqueeze(-1) * away[:, 1].unsqueeze(-2), 0.0)


class TestAutoencoderTerm:
    def test_it_is_the_likelihood_of_the_frames_given_their_own_codes(self):
        model, pictures = make("dkm").train(), frames()
        extra = model(pictures).extra_objective
        pixels = model.decoder(model.embed(pictures).flatten(0, 1))
        close(extra, pixels.log_prob(pictures.flatten(0, 1)).unflatten(0, (2, 5)).sum(-1))

    def test_it_is_there_in_training_only_and_can_be_left_out(self):
        pictures = frames()
        assert make("dkm").train()(pictures).extra_objective is not None
        assert make("dkm").eval()(pictures).extra_objective is None
        assert make("dkm", autoencoder=False).train()(pictures).extra_objective is None

    def test_it_never_enters_the_bound(self):
        bounds = []
        for autoencoder in (True, False):
            model = make("dkm", autoencoder=autoencoder).train()
            torch.manual_seed(3)
            evidence = model(frames())
            close(evidence.elbo, evidence.log_likelihood - sum(evidence.divergences.values()))
            bounds.append(evidence.elbo)
        close(bounds[0], bounds[1])

    def test_it_counts_for_every_copy(self):
        assert make("dkm").train()(frames(), copies=3).extra_objective.shape == (6,)


def test_the_prior_rows_are_saved_and_not_trained():
    model = make("dkm")
    assert "row_mean" in model.state_dict()
    assert "row_mean" not in dict(model.named_parameters())
    assert model.row_mean.std().item() == pytest.approx(0.05, rel=0.5)


def test_a_loaded_model_has_the_bound_of_the_saved_one():
    saved, loaded, pictures = make("dkm"), make("dkm"), frames()
    saved.row_mean.mul_(7)
    assert not torch.allclose(saved(pictures).divergences["kl_rows"], loaded(pictures).divergences["kl_rows"])
    loaded.load_state_dict(saved.state_dict())
    torch.manual_seed(0)
    expected = saved(pictures).elbo
    torch.manual_seed(0)
    close(loaded(pictures).elbo, expected)
