"""Copies: every episode counts several times, each with randomness of its own, and is encoded once."""

import pytest
import torch

from models.zoo import B, FixedCodes, T, close, every_model, frames, make

DETERMINISTIC = {"vae": {"kl_codes"}, "statistician": {"kl_context"}, "dkm": {"kl_weights", "kl_rows"}}


@every_model
def test_there_are_as_many_bounds_as_copies_and_the_encoder_runs_once(name):
    model, seen = make(name), []
    model.encoder.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    evidence = model(frames(), copies=3)
    assert seen == [B * T]
    assert evidence.episode_length == T
    assert all(value.shape == (3 * B,) for value in evidence.per_frame().values())


@every_model
def test_what_has_no_randomness_is_the_same_in_every_copy(name):
    model, pictures = make(name), frames()
    once, copied = model(pictures).divergences, model(pictures, copies=3).divergences
    for term in DETERMINISTIC.get(name, set()):
        close(copied[term], once[term].repeat(3))


@every_model
def test_copies_have_randomness_of_their_own(name):
    likelihoods = make(name)(frames(), copies=3).log_likelihood.unflatten(0, (3, B))
    assert all(len(episode.unique()) == 3 for episode in likelihoods.T)


@torch.no_grad()
@every_model
def test_the_expected_bound_is_that_of_a_single_copy(name):
    model, pictures = make(name), frames().repeat(5, 1, 1, 1, 1)  # the same two episodes, five times
    torch.manual_seed(0)
    single = torch.cat([model(pictures).elbo.unflatten(0, (5, B)) for _ in range(6)])
    copied = torch.cat([model(pictures, copies=2).elbo.unflatten(0, (10, B)) for _ in range(6)])
    error = (single.var(0) / len(single) + copied.var(0) / len(copied)).sqrt()
    assert ((single.mean(0) - copied.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize("name", ["gaussian", "mixture"])
def test_every_copy_is_written_from_a_start_of_its_own(name):
    rows = make(name, iterations=1)(frames(), copies=3).divergences["kl_rows"].unflatten(0, (3, B))
    assert all(len(episode.unique()) == 3 for episode in rows.T)


@pytest.mark.parametrize("name", ["vae", "mixture"])
def test_codes_and_frames_are_copied_in_step(name):
    model, pictures, paired = make(name), frames(), []
    means = model.head(model.embed(pictures)).mean
    model.head = FixedCodes(means, var=1e-20)

    def score(codes, scored):
        paired.append((codes, scored))
        return scored.sum((1, 2, 3, 4))

    model.score = score
    model(pictures, copies=2)
    ((codes, scored),) = paired
    assert torch.equal(scored, torch.cat([pictures, pictures]))
    close(codes, torch.cat([means, means]), atol=1e-8)
