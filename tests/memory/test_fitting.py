"""Priors that fit: every update raises the bound, the scale of the codes does not matter, a written memory works."""

from typing import Any

import pytest
import torch

from memory.zoo import close, normal
from tiny import seeded
from vbmem.memory import (
    CategoricalMemory,
    GaussianMemory,
    MemoryState,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
    engine,
    expansion,
)
from vbmem.memory.choice import DirichletChoice
from vbmem.memory.fitting import best_noise, first_prior, log_noise_prior, measure, refit

FRESH = {
    "gaussian": lambda: GaussianMemory(6, 2),
    "categorical": lambda: CategoricalMemory(6, 3),
    "shifted": lambda: ShiftedGaussianMemory(6, 2),
    "mixture": lambda: MixtureMemory(6, 2, 3),
    "mixture-factorised": lambda: MixtureMemory(6, 2, 3, factorised=True),
    "mixture-weighted": lambda: MixtureMemory(6, 2, 3, choice=DirichletChoice(0.7)),
    "round": lambda: MixtureMemory(6, 0, 3),
    "tree": lambda: TreeMemory(6, 2, 3, 2),
}
every_kind = pytest.mark.parametrize("kind", FRESH)
every_noise = pytest.mark.parametrize("noise", ["global", "feature", "cluster"])
UNITS = torch.tensor([1, 2, 0.5, 1, 1, 3.0], dtype=torch.float64)


@every_kind
@every_noise
@pytest.mark.parametrize("codes", ["one episode", "copies", "several episodes"])
@pytest.mark.parametrize("relevance", [False, True], ids=["", "relevance"])
def test_every_step_raises_the_bound(kind, noise, codes, relevance):
    data = normal(2, 12, 6) if codes == "several episodes" else normal(12, 6)
    data = UNITS * data
    if codes == "copies":
        data[3:] = data[:1]
    memory = first_prior(FRESH[kind](), noise, data)
    state = memory.first_state(data, generator=seeded())
    previous = -float("inf")
    for _ in range(8):
        sums, local = memory.local_step(state, data)
        now = float((local - memory.divergence(state)).sum() + log_noise_prior(memory))
        assert now >= previous - 1e-8 * (1 + abs(now))
        state = memory.global_step(state, sums)
        memory, state = refit(memory, state, sums, memory.prior(state.row_mean), relevance=relevance)
        state = expansion.expand(sums, state, memory.prior(state.row_mean))
        previous = now


@every_noise
def test_the_noise_is_the_best_there_is(noise):
    """U and R held in units of the noise, no other is better: neither a little more nor a little less."""
    codes = UNITS * normal(20, 6)
    memory: Any = first_prior(MixtureMemory(6, 2, 3), noise, codes)
    state, _ = memory.write(codes, 5, generator=seeded())
    addresses, sums = engine.local_step(codes, state, memory.prior(codes))
    best = best_noise(memory, state, sums, memory.prior(codes))

    def bound(noise_var):
        grown = noise_var.mean() / memory.noise_var.mean()
        other = memory.with_scales(noise_var=noise_var, row_var=memory.row_var * grown, loc_var=memory.loc_var * grown)
        prior = other.prior(codes)
        moved = MemoryState(state.row_mean, state.row_cov * grown)
        fresh = engine.statistics(codes, addresses, prior)
        # The rate of the inverse gamma is that of the noise before, as in the update.
        rate = 1 / (1 / memory.noise_var).mean(0) if noise == "cluster" else None
        penalty = 0.0 if rate is None else float((-2 * noise_var.log() - rate / noise_var).sum())
        return float(engine.bound(fresh, moved, addresses, prior).total) + penalty

    at_best = bound(best)
    for factor in (0.98, 1.02):
        assert bound(best * factor) < at_best
        for index in range(best.numel()):
            changed = best.clone()
            changed.view(-1)[index] *= factor
            assert bound(changed) < at_best + 1e-9


@every_kind
@every_noise
def test_units_do_not_matter(kind, noise):
    codes = normal(40, 6)
    units, offset = (UNITS if noise != "global" else 7.0), 100 * normal(6, seed=1)
    if kind == "gaussian":
        offset = torch.zeros(6, dtype=torch.float64)
    weighted = kind == "mixture-weighted"
    plain = FRESH[kind]().fit_prior(codes, noise=noise, generator=seeded(), weights=weighted)
    moved = FRESH[kind]().fit_prior(codes * units + offset, noise=noise, generator=seeded(), weights=weighted)
    close(torch.as_tensor(moved.noise_var), torch.as_tensor(plain.noise_var * units**2), rtol=1e-5)
    state, addresses = plain.write(codes, 5, "prior")
    again, moved_addresses = moved.write(codes * units + offset, 5, "prior")
    bounds = (
        plain.bound(codes, state, addresses).total,
        moved.bound(codes * units + offset, again, moved_addresses).total,
    )
    logdet = 40 * (torch.as_tensor(units, dtype=torch.float64) * torch.ones(6, dtype=torch.float64)).log().sum()
    close(bounds[1] + logdet, bounds[0], rtol=1e-4)


def unit_norm_groups() -> tuple[torch.Tensor, torch.Tensor]:
    """200 unit-norm vectors in 384 dimensions, five obvious groups."""
    centres = torch.nn.functional.normalize(normal(5, 384), dim=-1)
    label = torch.arange(200) % 5
    return torch.nn.functional.normalize(centres[label] + 0.03 * normal(200, 384, seed=1), dim=-1).float(), label


@every_noise
def test_embeddings_of_unit_norm_fall_into_their_groups(noise):
    codes, label = unit_norm_groups()
    memory = MixtureMemory.for_codes(codes, 2, 5, noise=noise, generator=seeded())
    state, addresses = memory.write(codes)
    found = addresses.assignment.argmax(-1)
    assert len({(int(a), int(b)) for a, b in zip(found, label, strict=True)}) == 5
    assert memory.sample(state, 100, seeded()).norm(dim=-1).mean() == pytest.approx(1, abs=0.1)


def test_the_bare_constructor_is_warned_of_them():
    codes, _ = unit_norm_groups()
    with pytest.warns(UserWarning, match=r"mean square of 0.0026.*expects about 6.*fit_prior"):
        MixtureMemory(384, 6, 5).write(codes)


def test_a_stream_an_array_and_a_tensor_fit_alike():
    codes = 3 * normal(60, 4) + 5
    whole = MixtureMemory(4, 1, 2).fit_prior(codes, start="prior")
    for chunks in ([codes[:25], codes[25:]], codes.numpy(), lambda: iter([codes[:10], codes[10:]])):
        streamed = MixtureMemory(4, 1, 2).fit_prior(chunks, start="prior")
        for name, value in whole.scales.items():
            close(torch.as_tensor(streamed.scales[name]), torch.as_tensor(value), rtol=1e-8)


def test_masked_frames_are_not_there_and_weights_repeat():
    codes = normal(12, 4)
    mask = torch.arange(12) < 8
    spoilt = codes.where(mask.unsqueeze(-1), float("nan"))
    removed = MixtureMemory(4, 1, 2).fit_prior(codes[:8], start="prior")
    masked = MixtureMemory(4, 1, 2).fit_prior(spoilt, start="prior", mask=mask)
    doubled = MixtureMemory(4, 1, 2).fit_prior(torch.cat([codes[:8], codes[:4]]), start="prior")
    weighted = MixtureMemory(4, 1, 2).fit_prior(codes[:8], start="prior", mask=1 + (torch.arange(8) < 4).to(codes))
    for name in removed.scales:
        close(torch.as_tensor(masked.scales[name]), torch.as_tensor(removed.scales[name]), rtol=1e-8)
        close(torch.as_tensor(weighted.scales[name]), torch.as_tensor(doubled.scales[name]), rtol=1e-8)


def test_a_prior_for_every_cluster_makes_way_for_one_that_fits():
    codes = 3 * normal(40, 4) + 5
    apart = MixtureMemory(4, 1, 2, loc_mean=normal(2, 4), loc_var=torch.tensor([1.0, 2.0]))
    fitted, expected = (
        memory.fit_prior(codes, iterations=5, generator=seeded()) for memory in (apart, MixtureMemory(4, 1, 2))
    )
    for name, value in expected.scales.items():
        close(torch.as_tensor(fitted.scales[name]), torch.as_tensor(value))
    assert fitted.resize(clusters=3).clusters == 3


def test_relevance_switches_off_rows_that_nobody_needs():
    codes = normal(300, 1) * normal(1, 8, seed=1) * 3 + 0.3 * normal(300, 8, seed=2)
    memory = ShiftedGaussianMemory(8, 4).fit_prior(codes, relevance=True, iterations=200, tol=1e-6)
    spread = torch.as_tensor(memory.row_var).sort(descending=True).values
    assert spread.shape == (4,)
    assert spread[0] > 50 * spread[1]


def test_weights_follow_the_use_of_the_clusters():
    label = (torch.arange(100) % 10 == 0).long()
    codes = 10 * normal(2, 4)[label] + 0.3 * normal(100, 4, seed=1)
    memory = MixtureMemory(4, 0, 2).fit_prior(codes, weights=True)
    weights = memory.choice.log_prior(2, codes).softmax(-1).sort().values
    close(weights, torch.tensor([0.1, 0.9], dtype=torch.float64), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise": "row"}, "noise must be one of global, feature, cluster, got 'row'"),
        ({"mask": torch.zeros(5, dtype=torch.bool)}, "all are masked"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_fitted_is_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        MixtureMemory(3, 1, 2).fit_prior(normal(5, 3), **arguments)


def test_a_constant_feature_does_not_set_the_scale():
    codes = 1e-5 * normal(100, 8)
    plain = MixtureMemory.for_codes(codes, 0, 2, generator=seeded())
    padded = MixtureMemory.for_codes(torch.cat([codes, torch.zeros_like(codes[:, :1])], -1), 0, 2, generator=seeded())
    assert float(padded.noise_var) == pytest.approx(float(plain.noise_var) * 8 / 9, rel=0.05)


def test_nothing_but_copies_can_still_be_fitted():
    codes = torch.ones(6, 3)
    for noise in ("global", "feature", "cluster"):
        memory = MixtureMemory.for_codes(codes, 1, 2, noise=noise)
        state, _ = memory.write(codes)
        assert memory.sample(state, 3).isfinite().all()


def test_a_masked_first_frame_may_hold_anything():
    codes, mask = normal(50, 3) + 1000, torch.arange(50) > 0
    expected = measure(codes[1:], None, "feature")
    for filler in (torch.nan, torch.inf, 1e20):
        codes[0] = filler
        for found, known in zip(measure(codes, mask, "feature"), expected, strict=True):
            close(found, known)
        fitted = MixtureMemory(3, 1, 2).fit_prior(codes, mask=mask, generator=seeded())
        assert torch.as_tensor(fitted.loc_mean).isfinite().all()
