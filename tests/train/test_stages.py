"""When a stage ends and what the next one starts from; learning rates; clipping; averages."""

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from tiny import MODELS, squares, tiny_run, tiny_trainer
from train.runs import FEW, GivenBounds, log_lines
from vbmem.errors import CheckpointError, TrainingError
from vbmem.models import Evidence, Regulariser
from vbmem.models.directory import read_weights
from vbmem.models.settings import MemoryConfig
from vbmem.paper.presets import TWO_STAGES
from vbmem.train import Stage
from vbmem.train.checkpoint import load_checkpoint
from vbmem.train.step import TrainingStep


def trainer(config, run_dir):
    return tiny_trainer(replace(config, data=FEW), run_dir, squares(20))


def run_with_bounds(config, run_dir, bounds):
    """A finished run of which validation told these bounds."""
    made = trainer(config, run_dir)
    given = GivenBounds(made, bounds)
    made.run()
    return made, given


def same(weights, others):
    return weights.keys() == others.keys() and all(torch.equal(weights[key], others[key]) for key in weights)


def best_weights(run_dir):
    return read_weights(run_dir)


PATIENCE = {
    "worse and worse": ([5, 4, 3, 2], 4, 1),
    "better in the end": ([1, 3, 2, 2.5, 4, 3, 3, 3], 8, 5),
    "a tie is not better": ([1, 1, 1, 1], 4, 1),
    "better each time": (list(range(12)), 12, 12),
    "nan is never better": ([math.nan, -5, math.nan, math.inf, -6], 5, 2),
    "nor is it the first": ([math.nan, math.nan, 1, math.nan, 0, 0], 6, 3),
    "infinity is not a bound": ([math.inf, -math.inf, 0, -1, -1, -1], 6, 3),
}


@pytest.mark.parametrize(("bounds", "epochs", "best_epoch"), PATIENCE.values(), ids=PATIENCE.keys())
def test_a_stage_stops_when_three_epochs_were_no_better(bounds, epochs, best_epoch, tmp_path):
    made, given = run_with_bounds(tiny_run(epochs=12, patience=3), tmp_path, [*bounds, 99.0])
    assert made.progress.epoch == len(log_lines(tmp_path)) == epochs
    assert (made.progress.best, made.progress.best_epoch) == (bounds[best_epoch - 1], best_epoch)
    assert same(best_weights(tmp_path), given.weights[best_epoch - 1])


def test_a_stage_without_a_finite_bound_stops_too(tmp_path):
    made, _ = run_with_bounds(tiny_run(epochs=12, patience=3), tmp_path, [math.nan] * 12)
    assert made.progress.epoch == 3


class SecondStage(Exception):
    """The second stage is about to make its first step."""


def at_second_stage(made, monkeypatch):
    """Run the first stage only."""
    original = TrainingStep.__call__

    def stop(step, indices):
        if made.progress.stage == 1:
            raise SecondStage
        original(step, indices)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", stop)
        with pytest.raises(SecondStage):
            made.run()


def two_stages(model=MODELS["vae"], **settings):
    regularisers = (Regulariser(), TWO_STAGES[1].regulariser) if isinstance(model, MemoryConfig) else (None, None)
    second = replace(TWO_STAGES[1], learning_rate=1e-4, regulariser=regularisers[1])
    stages = (Stage(6, 1e-2, regularisers[0]), second)
    return tiny_run(model, stages=stages, **settings)


def test_the_second_stage_starts_from_the_best_weights_of_the_first(tmp_path, monkeypatch):
    made = trainer(two_stages(), tmp_path)
    given = GivenBounds(made, [1, 2, 5, 4, 3, 2])
    at_second_stage(made, monkeypatch)
    assert same(made.model.state_dict(), given.weights[2])
    assert not same(made.model.state_dict(), given.weights[5])


def test_the_second_stage_has_a_fresh_optimiser_and_its_own_settings(tmp_path, monkeypatch):
    made = trainer(two_stages(MODELS["mixture"], beta1=0.3), tmp_path)
    GivenBounds(made, list(range(6)))
    assert made.model.regulariser == Regulariser()
    first = made.step.optimizer
    at_second_stage(made, monkeypatch)
    assert len(first.state) == len(made.step.parameters)
    assert len(made.step.optimizer.state) == 0
    settings = made.step.optimizer.param_groups[0]
    assert (settings["lr"], settings["betas"], settings["eps"]) == (1e-4, (0.3, 0.999), 1e-8)
    assert settings["params"] == made.step.parameters
    assert made.model.regulariser == Regulariser(epsilon=1e-6, delta=2e-6)


@pytest.mark.parametrize(("bounds", "first"), [([5, 4, 3, 2], 4), (list(range(6)), 6)], ids=["early", "in-time"])
@pytest.mark.parametrize("takes_leftover", [True, False])
def test_the_second_stage_takes_ten_epochs_and_the_leftover(takes_leftover, bounds, first, tmp_path):
    stages = (Stage(6, 1e-2), Stage(10, 1e-3, takes_leftover=takes_leftover))
    rising = [100.0 + epoch for epoch in range(20)]
    made, _ = run_with_bounds(tiny_run(stages=stages, patience=3), tmp_path, bounds + rising)
    numbers = [line["stage"] for line in log_lines(tmp_path)]
    assert numbers.count(0) == first
    assert numbers.count(1) == 10 + (6 - first if takes_leftover else 0)
    assert made.progress.epoch == len(numbers)
    assert f"stage 2: {numbers.count(1)} epochs from the best weights" in made.console.file.getvalue()


def test_every_stage_has_its_own_patience_and_the_best_weights_of_all_are_kept(tmp_path):
    bounds = [9, 8, 7, 3, 4, 3, 3]
    stages = (Stage(6, 1e-2), Stage(6, 1e-3))
    made, given = run_with_bounds(tiny_run(stages=stages, patience=2), tmp_path, [*bounds, 99.0])
    assert [line["stage"] for line in log_lines(tmp_path)] == [0, 0, 0, 1, 1, 1, 1]
    assert (made.progress.best, made.progress.stage_best, made.progress.best_epoch) == (9, 4, 2)
    assert same(best_weights(tmp_path), given.weights[0])


def test_a_first_stage_without_a_finite_bound_is_reported(tmp_path):
    """There are no best weights for the second stage to start from."""
    made = trainer(tiny_run(stages=(Stage(2, 1e-2), Stage(2, 1e-3))), tmp_path)
    GivenBounds(made, [math.nan] * 4)
    with pytest.raises((TrainingError, CheckpointError)):
        made.run()


def learning_rates(config, run_dir):
    """That of every epoch."""
    made = trainer(config, run_dir)
    rates = []

    def validate():
        rates.append(made.step.optimizer.param_groups[0]["lr"])
        return {"elbo_per_frame": float(made.progress.epoch), "standard_error": 0.0}

    made.validate = validate
    made.run()
    return rates


def test_the_constant_schedule_keeps_the_learning_rate(tmp_path):
    stages = (Stage(3, 1e-2), Stage(2, 1e-3))
    assert learning_rates(tiny_run(stages=stages), tmp_path) == [1e-2] * 3 + [1e-3] * 2


def test_the_cosine_schedule_falls_over_every_stage(tmp_path):
    stages = (Stage(4, 1e-2), Stage(3, 1e-3))
    half = math.sqrt(0.5)
    first = [1e-2, 1e-2 * (1 + half) / 2, 1e-2 / 2, 1e-2 * (1 - half) / 2]
    second = [1e-3, 0.75e-3, 0.25e-3]
    assert learning_rates(tiny_run(stages=stages, schedule="cosine"), tmp_path) == pytest.approx(first + second)


def test_a_small_learning_rate_makes_small_steps(tmp_path):
    """Adam's first step moves a weight by the learning rate, whatever the gradient."""
    made = trainer(tiny_run(stages=(Stage(1, 1e-5),)), tmp_path)
    before = [parameter.detach().clone() for parameter in made.step.parameters]
    made.step(made.source.epoch_indices(0)[0])
    moved = torch.cat([(p - q).detach().abs().flatten() for p, q in zip(made.step.parameters, before, strict=True)])
    assert moved.max() == pytest.approx(1e-5, rel=0.02)


def gradients(clip, run_dir):
    made = trainer(tiny_run(clip=clip), run_dir)
    torch.manual_seed(0)
    made.step(made.source.epoch_indices(0)[0])
    return torch.cat([parameter.grad.flatten() for parameter in made.step.parameters if parameter.grad is not None])


def test_without_a_limit_the_gradient_is_as_long_as_with_a_large_one(tmp_path):
    torch.testing.assert_close(gradients(None, tmp_path / "none"), gradients(1e9, tmp_path / "large"))


def test_the_whole_gradient_is_clipped(tmp_path):
    free = gradients(1e9, tmp_path / "free")
    assert free.norm() > 1
    clipped = gradients(0.01, tmp_path / "clipped")
    assert clipped.norm() == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(clipped, free * (0.01 / free.norm()), rtol=1e-4, atol=1e-9)


def test_a_gradient_within_the_limit_is_left_alone(tmp_path):
    assert torch.equal(gradients(1e6, tmp_path / "one"), gradients(1e9, tmp_path / "other"))


def test_averages_follow_their_recursion(tmp_path):
    made = trainer(tiny_run(averaging=0.5), tmp_path)
    expected = [parameter.detach().clone() for parameter in made.step.parameters]
    batches = [batch for epoch in range(10) for batch in made.source.epoch_indices(epoch)]
    assert len(batches) > 8  # after which the decay is that of the settings
    for number, indices in enumerate(batches):
        made.step(indices)
        decay = min(0.5, (1 + number) / (10 + number))
        expected = [decay * e + (1 - decay) * p.detach() for e, p in zip(expected, made.step.parameters, strict=True)]
    torch.testing.assert_close(made.step.averages, expected)


def test_averages_are_what_is_validated_and_kept(tmp_path):
    made = trainer(tiny_run(averaging=0.9), tmp_path)
    given = GivenBounds(made, [1.0, 3.0, 2.0, 2.5])
    averages = []

    def validate():
        averages.append([average.clone() for average in made.step.averages])
        return given()

    made.validate = validate
    made.run()
    names = [name for name, _ in made.model.named_parameters()]
    for weights, average in zip(given.weights, averages, strict=True):
        assert all(torch.equal(weights[name], tensor) for name, tensor in zip(names, average, strict=True))
    assert same(best_weights(tmp_path), given.weights[1])


def test_training_goes_on_with_the_weights_themselves(tmp_path):
    """Averaging changes nothing about the training."""
    plain, averaged = (trainer(tiny_run(averaging=decay), tmp_path / str(decay)) for decay in (0.0, 0.9))
    for made in (plain, averaged):
        GivenBounds(made, [1.0, 2.0, 3.0, 4.0])
        torch.manual_seed(0)
        made.run()
    assert same(plain.model.state_dict(), averaged.model.state_dict())
    last = load_checkpoint(tmp_path / "0.9" / "last.safetensors")[0]["model"]
    assert same(last, plain.model.state_dict())
    assert not same(best_weights(tmp_path / "0.9"), last)


def test_averages_start_afresh_in_the_second_stage(tmp_path, monkeypatch):
    made = trainer(two_stages(averaging=0.9), tmp_path)
    GivenBounds(made, [1, 2, 5, 4, 3, 2])
    at_second_stage(made, monkeypatch)
    assert all(torch.equal(average, p) for average, p in zip(made.step.averages, made.step.parameters, strict=True))


def test_an_epoch_shows_every_batch_once(tmp_path, monkeypatch):
    made = trainer(tiny_run(epochs=2), tmp_path)
    seen = []
    original = TrainingStep.__call__

    def noted(step, indices):
        seen.append(indices)
        return original(step, indices)

    monkeypatch.setattr(TrainingStep, "__call__", noted)
    made.run()
    expected = torch.cat([made.source.epoch_indices(epoch) for epoch in (0, 1)])
    assert len(seen) == 4
    assert torch.equal(torch.stack(seen), expected)


def test_the_regulariser_is_for_training_only(tmp_path):
    """Without a step in between, validation is the same with and without."""
    results = []
    for number, regulariser in enumerate([None, Regulariser()]):
        made = trainer(tiny_run(MODELS["mixture"], stages=(Stage(1, 1e-2, regulariser),)), tmp_path / str(number))
        torch.manual_seed(0)
        results.append(made.validate())
    assert results[0] == results[1]


def test_the_regulariser_makes_a_difference_in_training(tmp_path):
    weights = []
    for number, regulariser in enumerate([None, Regulariser()]):
        made = trainer(tiny_run(MODELS["mixture"], stages=(Stage(1, 1e-2, regulariser),)), tmp_path / str(number))
        made.run()
        weights.append(made.model.state_dict())
    assert not same(*weights)


@pytest.mark.parametrize("model", MODELS)
def test_damage_is_for_training_only_and_the_whole_picture_is_what_counts(model, tmp_path, monkeypatch):
    whole, damaged = (
        trainer(tiny_run(MODELS[model], damage=share), tmp_path / str(share)).model for share in (0.0, 1.0)
    )
    frames = torch.rand(2, 4, whole.frame.channels, whole.frame.size, whole.frame.size)
    assert torch.equal(damaged.eval().seen(frames), frames)
    assert torch.equal(whole.train().seen(frames), frames)
    embed, score = Mock(wraps=damaged.embed), Mock(wraps=damaged.score)
    monkeypatch.setattr(damaged, "embed", embed)
    monkeypatch.setattr(damaged, "score", score)
    damaged.train()(frames)
    encoded = embed.call_args.args[0]
    assert not torch.isclose(encoded, frames).flatten(2).all(-1).any()
    assert all(torch.equal(call.args[1], frames) for call in score.call_args_list)


def test_statistics_of_batch_norm_stay_where_they_are_through_all_stages(tmp_path):
    """A captured validation reads them from where they were when it was captured."""
    made = trainer(tiny_run(stages=(Stage(1, 1e-2), Stage(1, 1e-3))), tmp_path)
    before = {name: buffer.data_ptr() for name, buffer in made.model.named_buffers() if buffer.is_floating_point()}
    made.run()
    after = {name: buffer.data_ptr() for name, buffer in made.model.named_buffers() if buffer.is_floating_point()}
    assert before == after
    assert len(before) > 0


# --- Warm-up and the prior's scales -----------------------------------------------------------------------------------


def trained_weights(monkeypatch, run_dir, **settings):
    """How much a divergence counted in every step of a run of three stages, and the trainer."""
    stages = (Stage(2, 1e-2), Stage(1, 1e-3), Stage(2, 1e-3))
    made, weights = trainer(tiny_run(stages=stages, **settings), run_dir), []
    objective = Evidence.objective

    def noted(evidence, weight=None):
        weights.append(1.0 if weight is None else float(weight))
        return objective(evidence, weight)

    monkeypatch.setattr(Evidence, "objective", noted)
    made.run()
    return weights, made


def test_the_weight_of_a_divergence_rises_once_over_all_stages(tmp_path, monkeypatch):
    """There are two batches an epoch."""
    weights, made = trained_weights(monkeypatch, tmp_path, warm_up=8)
    assert weights == pytest.approx([0.1 + 0.9 * min(step / 8, 1) for step in range(10)])
    assert int(made.step.steps) == 10


def test_without_a_warm_up_every_step_counts_all_of_a_divergence(tmp_path, monkeypatch):
    assert trained_weights(monkeypatch, tmp_path)[0] == [1.0] * 10


def test_the_objective_is_the_bound_with_weighted_divergences():
    terms = {"kl_a": torch.tensor([1.0, 2.0]), "kl_b": torch.tensor([10.0, 20.0])}
    evidence = Evidence(torch.tensor([100.0, 200.0]), terms, 4, extra_objective=torch.tensor([0.5, 0.25]))
    assert evidence.objective().tolist() == [89.5, 178.25]
    assert evidence.objective(torch.tensor(0.0)).tolist() == [100.5, 200.25]
    assert evidence.objective(torch.tensor(0.5)).tolist() == [95.0, 189.25]


def test_a_step_of_a_warm_up_reports_the_bound_with_all_of_its_divergences(tmp_path):
    made = trainer(tiny_run(MODELS["mixture"], warm_up=5), tmp_path)
    made.step(made.source.epoch_indices(0)[0])
    means = made.step.means()
    paid = sum(value for name, value in means.items() if name.startswith("kl_"))
    assert means["elbo_per_frame"] == pytest.approx(means["log_likelihood"] - paid, rel=1e-4)
    assert paid > 0


@pytest.mark.parametrize(("warm_up", "epochs"), [(0, 4), (5, 6), (6, 6), (7, 7), (100, 12)])
def test_patience_begins_after_the_warm_up(warm_up, epochs, tmp_path):
    """Three epochs, of two batches each."""
    bounds = [5.0 - epoch for epoch in range(12)]
    made, _ = run_with_bounds(tiny_run(epochs=12, patience=3, warm_up=warm_up), tmp_path, bounds)
    assert made.progress.epoch == epochs


def test_the_priors_scales_have_a_rate_of_their_own(tmp_path):
    config = tiny_run(replace(MODELS["mixture"], learned_scales=True), schedule="cosine", scale_rate=7.0)
    made = trainer(config, tmp_path)
    networks, scales = made.step.optimizer.param_groups
    assert [id(p) for p in scales["params"]] == [id(p) for p in made.model.log_scales.values()]
    assert len(networks["params"]) + len(scales["params"]) == len(made.step.parameters)
    for rate in (networks["lr"], 1e-4):
        made.step.set_learning_rate(rate)
        assert (networks["lr"], scales["lr"]) == (rate, 7 * rate)
    before = [scale.detach().clone() for scale in scales["params"]]
    made.step.set_learning_rate(1e-4)
    made.step(made.source.epoch_indices(0)[0])
    for scale, start in zip(scales["params"], before, strict=True):
        # Adam's first step is as long as its rate, in every number.
        torch.testing.assert_close((scale - start).abs(), torch.full_like(start, 7e-4), rtol=1e-2, atol=0)


@pytest.mark.parametrize("weighs", [False, True], ids=["corrected", "weighed"])
def test_the_priors_scales_wait_for_the_end_of_the_warm_up_unless_recall_is_weighed_by_them(weighs, tmp_path):
    """There are two batches an epoch."""
    seen = {"sees_recall": True, "weighs_recall": True, "learned_code_var": True} if weighs else {}
    config = tiny_run(replace(MODELS["mixture"], learned_scales=True, **seen), epochs=3, warm_up=3)
    made, moved = trainer(config, tmp_path), []
    before, validate = made.model.log_scales["loc_var"].detach().clone(), made.validate

    def noted():
        moved.append(not torch.equal(made.model.log_scales["loc_var"], before))
        return validate()

    made.validate = noted
    made.run()
    assert moved == [weighs, weighs, True]


@pytest.mark.parametrize("settings", [{"warm_up": -1}, {"scale_rate": 0.0}])
def test_impossible_rates_are_refused(settings):
    with pytest.raises(ValueError, match="must"):
        tiny_run(**settings)
