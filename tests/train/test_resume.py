"""A run that was interrupted goes on as if nothing had happened, bit for bit."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import pytest
import torch

from tiny import DATA, MODELS, tiny_run, tiny_trainer
from train.runs import BATCHES, TRAINED, assert_same_remains, log_lines, trained, two_stages
from vbmem.models import VAE, Regulariser
from vbmem.train import Evaluation, Stage, loop
from vbmem.train.checkpoint import load_checkpoint
from vbmem.train.interrupt import StoppedBetweenSteps
from vbmem.train.log import RunLog
from vbmem.train.step import TrainingStep

EPOCHS = 2
RUNS = {
    **{name: tiny_run(model, EPOCHS) for name, model in TRAINED.items() if name != "mixture"},
    "regularised": tiny_run(MODELS["mixture"], stages=(Stage(EPOCHS, 1e-2, Regulariser()),), beta1=0.0),
    "averaged": tiny_run(epochs=EPOCHS, averaging=0.9),
    "cosine": tiny_run(epochs=EPOCHS, schedule="cosine"),
    "two-stages": two_stages(),
    "two-stages-averaged-cosine": two_stages(MODELS["vae"], averaging=0.9, schedule="cosine"),
    "warm-up": two_stages(replace(MODELS["mixture"], learned_scales=True), warm_up=BATCHES + 7),
    "warm-up-over": two_stages(replace(MODELS["mixture"], learned_scales=True), warm_up=BATCHES + 3),
    "views-twice": tiny_run(epochs=EPOCHS, data=replace(DATA, episodes="views", sources_per_episode=2), copies=2),
    "by-label-binary": tiny_run(epochs=EPOCHS, data=replace(DATA, episodes="by-label", binary=True)),
    "augmented-random-bits": tiny_run(
        epochs=EPOCHS, data=replace(DATA, binary=True, binarise="random", augment=("mirror", "affine"))
    ),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The directory of a whole run with the given settings."""

    @cache
    def run(config):
        run_dir = tmp_path_factory.mktemp("whole")
        trained(config, run_dir)
        return run_dir

    return run


class Crash(Exception):
    """As a power cut: nothing is caught, nothing saved."""


def stop_after(monkeypatch, batches, how):
    """Raise `how` instead of training on one batch more than `batches`."""
    original, done = TrainingStep.__call__, 0

    def counted(step, indices):
        nonlocal done
        if done == batches:
            raise how
        done += 1
        original(step, indices)

    monkeypatch.setattr(TrainingStep, "__call__", counted)


def interrupted(monkeypatch, config, run_dir, batches, how=StoppedBetweenSteps, **options):
    """A trainer whose run was ended after so many batches."""
    made = tiny_trainer(config, run_dir, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, batches, how)
        with pytest.raises((how, KeyboardInterrupt)):
            made.run()
    return made


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(BATCHES, id="between-epochs", marks=pytest.mark.long),
        pytest.param(BATCHES + 5, id="within-an-epoch"),
    ],
)
@pytest.mark.parametrize("config", RUNS.values(), ids=RUNS.keys())
def test_a_resumed_run_equals_an_undisturbed_one(config, batches, undisturbed, tmp_path, monkeypatch):
    interrupted(monkeypatch, config, tmp_path, batches)
    torch.manual_seed(12345)
    resumed = trained(config, tmp_path, resume=True)
    assert resumed.progress.epoch == EPOCHS
    assert_same_remains(undisturbed(config), tmp_path)


@pytest.mark.parametrize("batches", [0, 1, BATCHES - 1, EPOCHS * BATCHES - 1])
def test_any_batch_may_be_the_last_before_an_interruption(batches, undisturbed, tmp_path, monkeypatch):
    interrupted(monkeypatch, RUNS["vae"], tmp_path, batches)
    _, progress = load_checkpoint(tmp_path / "last.safetensors")
    assert (progress.epoch, progress.batch) == divmod(batches, BATCHES)
    trained(RUNS["vae"], tmp_path, resume=True)
    assert_same_remains(undisturbed(RUNS["vae"]), tmp_path)


def test_a_run_may_be_interrupted_again_and_again(undisturbed, tmp_path, monkeypatch):
    config = RUNS["two-stages-averaged-cosine"]
    interrupted(monkeypatch, config, tmp_path, 2)
    for _ in range(5):
        interrupted(monkeypatch, config, tmp_path, 3, resume=True)
    trained(config, tmp_path, resume=True)
    assert_same_remains(undisturbed(config), tmp_path)


def test_the_sums_of_an_interrupted_epoch_are_kept(tmp_path, monkeypatch):
    made = interrupted(monkeypatch, tiny_run(), tmp_path, 5)
    resumed = tiny_trainer(tiny_run(), tmp_path, resume=True)
    assert resumed.step.counted == 5
    assert resumed.step.means() == made.step.means()
    assert resumed.progress.batch == 5


def test_an_interruption_is_saved_and_says_how_to_go_on(tmp_path, monkeypatch):
    run_dir = tmp_path / "a run"
    made = interrupted(monkeypatch, tiny_run(), run_dir, 5)
    said = made.console.file.getvalue()
    assert f"stopped, and saved in {run_dir}; resume the run to go on" in said
    assert load_checkpoint(run_dir / "last.safetensors")[1].batch == 5


@pytest.mark.parametrize("batches", [1, BATCHES + 5])
@pytest.mark.parametrize("name", ["averaged", "two-stages-averaged-cosine"])
def test_a_crash_costs_what_came_after_the_last_checkpoint(name, batches, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    interrupted(monkeypatch, RUNS[name], tmp_path, batches, Crash)
    _, progress = load_checkpoint(tmp_path / "last.safetensors")
    assert progress.epoch == batches // BATCHES
    trained(RUNS[name], tmp_path, resume=True)
    assert_same_remains(undisturbed(RUNS[name]), tmp_path)


def test_a_finished_run_has_nothing_to_resume(tmp_path, monkeypatch):
    config = RUNS["two-stages-averaged-cosine"]
    made = trained(config, tmp_path)
    log = log_lines(tmp_path)
    stop_after(monkeypatch, 0, AssertionError("trained on"))
    again = tiny_trainer(config, tmp_path, resume=True)
    assert again.run() == made.progress.best
    assert again.progress == made.progress
    assert log_lines(tmp_path) == log


def test_resuming_keeps_the_best_weights_of_before(tmp_path, monkeypatch):
    made = interrupted(monkeypatch, tiny_run(), tmp_path, BATCHES + 3)
    resumed = tiny_trainer(tiny_run(), tmp_path, resume=True)
    assert resumed.progress.best == made.progress.best
    assert resumed._best.keys() == made._best.keys() == made.model.state_dict().keys()
    assert all(torch.equal(resumed._best[name], made._best[name]) for name in made._best)


def on_call(number, original, presses=1):
    """The function, with Ctrl-C just after its call of that number."""
    calls = 0

    def signalling(*args, **kwargs):
        nonlocal calls
        calls += 1
        result = original(*args, **kwargs)
        if calls == number:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return result

    return signalling


# What is under way when Ctrl-C is pressed: an owner, the name of its function, and which call of it in the run.
MOMENTS = {
    "forward-in-training": (VAE, "forward", BATCHES + 4),
    "optimiser": (torch.optim.Adam, "step", BATCHES + 4),
    "forward-in-validation": (VAE, "forward", 2 * (BATCHES + 1)),
    "validation": (Evaluation, "__call__", 2),
    "log": (RunLog, "event", 2),
    "next-stage": (torch.optim.Adam, "__init__", 1),
    "saving": (loop, "write_weights", 2),
}


@pytest.mark.parametrize(("owner", "name", "call"), MOMENTS.values(), ids=MOMENTS.keys())
def test_an_interrupt_at_any_moment_loses_nothing(owner, name, call, undisturbed, tmp_path, monkeypatch):
    """Ctrl-C may strike in the middle of a step or between two lines of bookkeeping."""
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    config = tiny_run(stages=(Stage(2, 1e-2), Stage(1, 1e-3)), averaging=0.9)
    made = tiny_trainer(config, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, on_call(call, getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            made.run()
    trained(config, tmp_path, resume=True)
    assert_same_remains(undisturbed(config), tmp_path)


@pytest.mark.parametrize("moment", ["forward-in-training", "forward-in-validation", "next-stage"])
def test_impatience_does_no_harm(moment, undisturbed, tmp_path, monkeypatch):
    """A second Ctrl-C may end the run at once, but never leaves a checkpoint of half a step."""
    owner, name, call = MOMENTS[moment]
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    config = tiny_run(stages=(Stage(2, 1e-2), Stage(1, 1e-3)), averaging=0.9)
    made = tiny_trainer(config, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, on_call(call, getattr(owner, name), presses=2))
        with pytest.raises(KeyboardInterrupt):
            made.run()
    trained(config, tmp_path, resume=True)
    assert_same_remains(undisturbed(config), tmp_path)


def test_ctrl_c_in_the_last_validation_lets_the_run_end(undisturbed, tmp_path, monkeypatch):
    config = RUNS["vae"]
    made = tiny_trainer(config, tmp_path)
    monkeypatch.setattr(Evaluation, "__call__", on_call(EPOCHS, Evaluation.__call__))
    made.run()
    assert_same_remains(undisturbed(config), tmp_path)


def test_ctrl_c_means_after_a_run_what_it_meant_before(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    made = tiny_trainer(tiny_run(epochs=1), tmp_path)
    made.run()
    assert signal.getsignal(signal.SIGINT) is before
    broken = tiny_trainer(tiny_run(epochs=1), tmp_path / "broken")
    broken.validate = lambda: {}
    with pytest.raises(KeyError):
        broken.run()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_need_not_be_in_the_main_thread(undisturbed, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(trained, RUNS["vae"], tmp_path).result()
    assert_same_remains(undisturbed(RUNS["vae"]), tmp_path)


def test_the_optimisers_state_comes_back_in_the_memory_format_of_the_weights(tmp_path):
    """On CUDA the networks are channels-last, and the fused optimiser takes no other."""
    config = tiny_run(epochs=1)
    made = trained(config, tmp_path)
    again = tiny_trainer(config, tmp_path, resume=True)
    again.model.to(memory_format=torch.channels_last)
    again.step.restore(made.step.tensors())
    moments = {p: state["exp_avg"] for p, state in again.step.optimizer.state.items() if state}
    assert moments
    for parameter, moment in moments.items():
        assert moment.stride() == parameter.stride()
