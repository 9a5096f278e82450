"""The memory model with each of its five memories: the bound, what it reports of the memory, trained scales."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from models import oracle
from models.zoo import B, FixedCodes, T, as_likely, close, close_terms, every_memory_model, frames, make, recorded_draws
from tiny import MEMORY_MODELS
from vbmem.memory import Memory, TreeMemory
from vbmem.memory.starting import Start as MemoryStart
from vbmem.memory.writing import VariationalMemory
from vbmem.models import FrameFormat
from vbmem.models.settings import MemoryKind, Objective, Start

KL_NAMES = {"kl_codes", "kl_assignments", "kl_weights", "kl_rows", "kl_locations"}


def posterior_and_write(model, pictures, seed):
    """Means and variances of q(z) frame by frame, then the memory as a forward pass with this seed writes it."""
    embeddings = oracle.embed(model, pictures)
    size, fixed = model.config.code_size, not model.config.learned_code_var
    outputs = model.head.layers(embeddings)
    means = outputs[..., :size]
    half_noise = 0.5 * float(model.memory.noise_var)
    variances = torch.full_like(means, half_noise) if fixed else outputs[..., size:].exp().square()
    torch.manual_seed(seed)
    memory = model.scaled_memory()
    return means, variances, memory, *memory.write(means, model.iterations)


def clustered(size):
    """Codes [B, 60, size] in three tight groups, far apart."""
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.randn(B, 3, size, generator=generator, dtype=torch.float64)
    return centres.repeat(1, 20, 1) + 0.01 * torch.randn(B, 60, size, generator=generator, dtype=torch.float64)


@torch.no_grad()
@every_memory_model
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_the_bound_equals_the_oracle(name, likelihood):
    model, pictures = make(name, likelihood), frames(binary=likelihood == "bernoulli")
    means, variances, memory, state, addresses = posterior_and_write(model, pictures, seed=5)
    torch.manual_seed(5)
    with recorded_draws() as draws:
        evidence = model(pictures)
    assert len(draws) == 1
    codes = means + variances.sqrt() * draws[0]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))
    expected = oracle.memory_divergences(memory, means, variances, state, addresses)
    assert set(expected) == KL_NAMES
    close_terms(evidence.divergences, expected)


def test_a_model_can_be_given_every_memory():
    ours = [kind for kind, memory in Memory.kinds.items() if memory.__module__.startswith("vbmem.")]
    written = [kind for kind in ours if issubclass(Memory.kinds[kind], VariationalMemory)]
    assert sorted(written) == sorted(get_args(MemoryKind))


@torch.no_grad()
@every_memory_model
def test_the_divergence_of_the_codes_is_the_mean_of_its_one_sample_estimate(name):
    model, pictures = make(name), frames()
    means, variances, memory, state, addresses = posterior_and_write(model, pictures, seed=2)
    torch.manual_seed(2)
    exact = model(pictures).divergences["kl_codes"]
    torch.manual_seed(0)
    as_likely(oracle.sampled_kl_codes(memory, means, variances, state, addresses, 4000), exact)


@every_memory_model
def test_terms_that_a_memory_has_not_are_zero(name):
    terms = make(name)(frames()).divergences
    absent = {
        "gaussian": {"kl_assignments", "kl_locations"},
        "categorical": {"kl_weights", "kl_rows"},  # its rows are the engine's locations
        "shifted": {"kl_assignments"},
    }.get(name, set())
    assert {term for term, value in terms.items() if (value.abs() < 1e-10).all()} == absent


@every_memory_model
def test_codes_of_a_variance_that_is_not_learned_have_half_the_noise_variance(name):
    model = make(name, learned_code_var=False)
    posterior = model.head(model.embed(frames()))
    close(posterior.var, 0.5 * model.memory.noise_var)
    assert model.head.layers[-1].out_features == model.config.code_size


@every_memory_model
def test_codes_of_a_variance_that_is_learned_differ_in_it(name):
    model = make(name, learned_code_var=True)
    posterior = model.head(model.embed(frames()))
    assert posterior.var.std() > 0
    assert model.head.layers[-1].out_features == 2 * model.config.code_size


def test_a_model_can_be_given_every_start():
    assert get_args(Start) == get_args(MemoryStart)


@torch.no_grad()
@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize("start", ["prior", "random", "data", "kmeans++"])
def test_a_write_starts_where_the_model_says(objective, start):
    model, pictures = make("mixture", start=start, objective=objective), frames()
    codes, asked = model.infer(pictures).mean, []
    start_state = model.memory.start_state
    memory = model.memory.with_prior()

    def noted(*args):
        asked.append(args[3])
        return start_state(*args)

    memory.start_state = noted
    model.write(memory, codes)
    assert asked == [start]


def test_iterations_are_those_asked_for_or_the_papers():
    assert make("mixture", iterations=3).iterations == 3
    papers = {name: make(name, iterations=None).iterations for name in MEMORY_MODELS}
    assert papers == {"gaussian": 50, "categorical": 2, "shifted": 50, "mixture": 10, "tree": 10}


def test_the_tree_cuts_the_code_into_the_partitions_asked_for():
    memory = make("tree", code_size=6, partitions=3).memory
    assert isinstance(memory, TreeMemory)
    assert (memory.code_size, memory.rows, memory.clusters, memory.partitions) == (6, 2, 3, 3)


class TestMeasures:
    @every_memory_model
    def test_the_share_lies_between_zero_and_one(self, name):
        for seed in range(5):
            share = make(name)(frames(seed=seed)).measures["memory_share"]
            assert ((share >= 0) & (share <= 1)).all()

    @pytest.mark.parametrize("name", ["categorical", "mixture", "tree"])
    def test_the_share_of_clearly_clustered_codes_is_nearly_one(self, name):
        model = make(name, rows=6 if name == "categorical" else 2)
        model.head = FixedCodes(clustered(model.config.code_size))
        torch.manual_seed(0)
        assert (model(frames(B, 60)).measures["memory_share"] > 0.95).all()

    @torch.no_grad()
    def test_the_share_is_the_part_of_the_variance_that_is_recalled(self):
        model, pictures = make("mixture"), frames()
        means, _, memory, state, addresses = posterior_and_write(model, pictures, seed=4)
        torch.manual_seed(4)
        share = model(pictures).measures["memory_share"]
        for b in range(B):
            recalled = memory.recall(state, addresses)[b]
            spread = (means[b] - means[b].mean(0)).square().sum()
            missed = (means[b] - recalled).square().sum()
            close(share[b], max(0.0, 1 - float(missed / spread)))

    def test_the_share_of_codes_the_memory_cannot_tell_apart_is_zero(self):
        model = make("gaussian")
        model.head = FixedCodes(torch.full((B, T, 4), 2.0, dtype=torch.float64))
        close(model(frames()).measures["memory_share"], 0.0)

    def test_the_share_of_codes_that_are_all_zero_is_a_number(self):
        model = make("mixture")
        model.head = FixedCodes(torch.zeros(B, T, 4, dtype=torch.float64))
        assert model(frames()).measures["memory_share"].isfinite().all()

    @every_memory_model
    def test_the_cost_is_every_divergence_but_that_of_the_codes_per_frame(self, name):
        evidence = make(name)(frames())
        paid = sum(value for term, value in evidence.divergences.items() if term != "kl_codes")
        close(evidence.measures["memory_kl"], paid / T)

    def test_measures_carry_no_gradient(self):
        assert not any(value.requires_grad for value in make("mixture")(frames()).measures.values())


class TestLearnedScales:
    NAMES = {name: {"noise_var", "row_var", "loc_var"} for name in MEMORY_MODELS} | {
        "gaussian": {"noise_var", "row_var"},
        "categorical": {"noise_var", "row_var"},
    }

    @every_memory_model
    def test_there_is_one_for_every_scale_of_the_prior(self, name):
        plain, scaled = make(name), make(name, learned_scales=True)
        extra = set(dict(scaled.named_parameters())) - set(dict(plain.named_parameters()))
        assert extra == {f"log_scales.{scale}" for scale in self.NAMES[name]}
        assert not plain.log_scales

    @every_memory_model
    def test_they_start_at_the_memorys_own(self, name):
        model: Any = replace(MEMORY_MODELS[name], learned_scales=True).build(FrameFormat(8, 1))
        for scale, log_scale in model.log_scales.items():
            assert log_scale.shape == ((model.content_size,) if scale == "noise_var" else ())
            close(log_scale.exp(), torch.full_like(log_scale, getattr(model.memory, scale)))

    @torch.no_grad()
    @every_memory_model
    def test_the_bound_is_that_of_the_scales_as_trained(self, name):
        model, pictures = make(name, learned_scales=True), frames()
        means, variances, memory, state, addresses = posterior_and_write(model, pictures, seed=5)
        for scale, log_scale in model.log_scales.items():
            close(torch.as_tensor(getattr(memory, scale)), log_scale.exp())
        torch.manual_seed(5)
        expected = oracle.memory_divergences(memory, means, variances, state, addresses)
        close_terms(model(pictures).divergences, expected)

    @every_memory_model
    def test_their_gradients_are_those_of_finite_differences(self, name):
        model, pictures = make(name, learned_scales=True), frames()

        def bound():
            torch.manual_seed(3)
            return model(pictures).elbo.sum()

        bound().backward()
        for log_scale in model.log_scales.values():
            value, step = log_scale.data.clone(), 1e-5
            along = torch.randn_like(value)
            bounds = []
            with torch.no_grad():
                for side in (step, -step):
                    log_scale.copy_(value + side * along)
                    bounds.append(bound())
                log_scale.copy_(value)
            close((log_scale.grad * along).sum(), (bounds[0] - bounds[1]) / (2 * step), rtol=1e-4, atol=1e-5)
            assert log_scale.grad.all()

    @torch.no_grad()
    @every_memory_model
    def test_a_model_of_before_keeps_its_one_noise(self, name):
        """For all numbers of the content, as vbmem 0.4 trained it."""
        model, state = make(name, learned_scales=True), make(name, learned_scales=True).state_dict()
        state["log_scales.noise_var"] = torch.tensor(0.3).log()
        model.load_state_dict(state)
        assert model.scaled_memory().noise_var.shape == ()
        assert model.state_dict()["log_scales.noise_var"] == state["log_scales.noise_var"]
        assert len(model.prior_scales) == len(self.NAMES[name])
