"""Frames that are told apart by memories of their episodes."""

import math

import pytest
import torch
from torch.distributions import Normal

from models.zoo import frames, make
from vbmem.memory import MixtureMemory
from vbmem.models.settings import MemoryConfig
from vbmem.models.telling import log_own_share
from vbmem.train.settings import DataConfig, RunConfig


def single(size, **prior):
    return MixtureMemory(size, rows=0, clusters=1, **prior)


def by_hand(contents, noise, spread):
    """By N(z; n s / (n s + v) mean, v + s v / (n s + v)), what n frames around a place from N(0, s) predict."""
    result = []
    for own, episode in enumerate(contents):
        by_shots = []
        for shots in (1, 5):
            shares = []
            for frame in episode[shots:]:
                logs = torch.stack(
                    [
                        Normal(
                            shots * spread / (shots * spread + noise) * other[:shots].mean(0),
                            math.sqrt(noise + spread * noise / (shots * spread + noise)),
                        )
                        .log_prob(frame)
                        .sum()
                        for other in contents
                    ]
                )
                shares.append(logs[own] - logs.logsumexp(0))
            by_shots.append(torch.stack(shares).mean())
        result.append(torch.stack(by_shots).mean())
    return torch.stack(result)


def test_it_is_the_share_of_the_predictive_density():
    contents = torch.randn(3, 7, 4, dtype=torch.float64)
    memory = single(4, noise_var=0.6, loc_var=2.5)
    torch.testing.assert_close(log_own_share(memory, contents), by_hand(contents, 0.6, 2.5), rtol=1e-6, atol=1e-8)


def test_episodes_that_are_alike_are_told_apart_by_chance_alone():
    contents = torch.randn(1, 6, 4).expand(5, -1, -1)
    torch.testing.assert_close(log_own_share(single(4), contents), torch.full((5,), -math.log(5)))


def test_episodes_far_apart_are_told_apart():
    contents = 30 * torch.eye(5).unsqueeze(1) + 0.1 * torch.randn(5, 6, 5)
    assert log_own_share(single(5, loc_var=100.0), contents).exp().min() > 0.999


def test_short_episodes_are_asked_after_one_frame_alone():
    assert log_own_share(single(4), torch.randn(3, 2, 4)).shape == (3,)


class TestTraining:
    def evidence(self, weight, *, memory="mixture", factorised=False, training=True, copies=1):
        changes = {"own_size": 2, "learned_code_var": True, "learned_scales": True, "factorised": factorised}
        model = make(memory, "bernoulli", tells_apart=weight, **changes).train(training)
        torch.manual_seed(1)
        return model, model(frames(3, 6, binary=True), copies)

    def test_the_bound_stays_as_it_is(self):
        (_, plain), (_, told) = self.evidence(0.0), self.evidence(3.0)
        assert torch.equal(plain.elbo, told.elbo)
        assert plain.extra_objective is None
        assert told.extra_objective is not None

    def test_the_weight_counts_beside_it_once_a_frame(self):
        one, three = self.evidence(1.0)[1].extra_objective, self.evidence(3.0)[1].extra_objective
        torch.testing.assert_close(3 * one, three)
        torch.testing.assert_close(self.evidence(3.0)[1].measures["log_own_share"], one / 6)
        chance = torch.full_like(one, -math.log(3))
        assert torch.allclose(one / 6, chance, atol=0.5)  # of an untrained model about that

    @pytest.mark.parametrize("factorised", [False, True])
    @pytest.mark.parametrize("memory", ["mixture", "tree"])
    def test_every_memory_with_clusters_can(self, memory, factorised):
        _, told = self.evidence(1.0, memory=memory, factorised=factorised)
        assert (told.extra_objective < 0).all()

    def test_copies_of_an_episode_are_not_told_apart(self):
        one, two = self.evidence(1.0)[1].extra_objective, self.evidence(1.0, copies=2)[1].extra_objective
        torch.testing.assert_close(two, one.repeat(2))

    def test_encoder_and_scales_learn_from_it(self):
        model, told = self.evidence(1.0)
        told.extra_objective.sum().backward()
        learning = next(model.encoder.parameters()), model.log_scales["noise_var"], model.log_scales["loc_var"]
        assert all(parameter.grad.abs().sum() > 0 for parameter in learning)

    def test_evaluation_does_not_see_it(self):
        assert self.evidence(1.0, training=False)[1].extra_objective is None

    def test_a_resized_model_tells_apart_as_before(self):
        model, _ = self.evidence(1.0)
        model.resize(clusters=5)
        assert model.single.clusters == 1


class TestErrors:
    @pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
    def test_a_weight_that_is_none(self, weight):
        with pytest.raises(ValueError, match="tells_apart must be 0 or a positive number"):
            MemoryConfig(tells_apart=weight)

    def test_codes_without_content(self):
        with pytest.raises(ValueError, match="tells_apart is by the content, and own_size leaves none"):
            MemoryConfig(tells_apart=1.0, code_size=8, own_size=8)

    @pytest.mark.parametrize("memory", ["gaussian", "categorical", "shifted"])
    def test_a_memory_without_clusters(self, memory):
        with pytest.raises(ValueError, match=f"with clusters, mixture or tree, not a {memory} one"):
            MemoryConfig(memory, tells_apart=1.0)

    @pytest.mark.parametrize(
        "data",
        [{"episodes": "shuffled"}, {"labels_per_episode": 4}, {"episode_length": 1}, {"batch_size": 1}],
        ids=str,
    )
    def test_episodes_that_have_no_label_of_their_own(self, data):
        settings = {"episodes": "by-label", "dataset": "omniglot"} | data
        with pytest.raises(ValueError, match="tells_apart needs episodes of one label"):
            RunConfig(DataConfig(**settings), MemoryConfig(tells_apart=1.0))
