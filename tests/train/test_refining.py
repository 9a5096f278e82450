"""A crisp decoder goes on learning against a critic, over a model that stays as it is."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from tiny import squares
from train.runs import assert_same_remains, log_lines
from train.test_painting import BATCHES, saved, with_decoder
from train.test_resume import stop_after
from vbmem.errors import CheckpointError, ModelError
from vbmem.files import read_tensors
from vbmem.models import CrispConfig, load_model, save_model
from vbmem.models.directory import digest
from vbmem.nets import CrispDecoder, Critic
from vbmem.train import RefiningConfig
from vbmem.train.interrupt import StoppedBetweenSteps
from vbmem.train.refining import Refining, RefiningTrainer, energy_distance

CONFIG = RefiningConfig(epochs=2, batch_frames=8, learning_rate=1e-3, averaging=0.9, clusters=(2, 3), critic_width=8)


def trainer(run_dir, config=CONFIG, model=None, **options) -> Any:
    return RefiningTrainer(config, model or with_decoder(), squares(), run_dir, **options)


def tiny_decoder(network) -> CrispDecoder:
    return CrispConfig(width=8, blocks=1).build(network.frame, 4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("refined")
    trainer(run_dir).run()
    return run_dir


def test_a_run_leaves_the_model_with_a_changed_decoder_and_no_critic(finished):
    before, loaded = with_decoder(), load_model(finished)
    assert before.painter is not None
    assert loaded.painter is not None
    assert digest(loaded.network.state_dict()) == digest(before.network.state_dict())
    assert loaded.painter.settings == before.painter.settings
    assert digest(loaded.painter.state_dict()) != digest(before.painter.state_dict())
    assert digest(with_decoder().painter.state_dict()) == digest(before.painter.state_dict())  # type: ignore[union-attr]
    assert "2 at 0.001 against a critic" in loaded.card["crisp decoder"]
    names = read_tensors(finished / "decoder.safetensors", "cpu")[0]
    assert not [name for name in names if "critic" in name]


def test_the_log_says_how_both_do(finished):
    errors = {"velocity_error", "shortcut_error", "telling_error", "realism_error", "slope"}
    for line in log_lines(finished):
        assert set(line["train"]) == {"minus_distance"} | errors
        assert set(line["valid"]) == {"minus_distance", "velocity_error", "standard_error", "episodes"}


@pytest.mark.parametrize("batches", [1, BATCHES + 5])
def test_a_resumed_run_equals_an_undisturbed_one(batches, finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, batches, StoppedBetweenSteps)
        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path).run()
    torch.manual_seed(12345)
    trainer(tmp_path, resume=True).run()
    assert_same_remains(finished, tmp_path)
    decoders = [read_tensors(path / "decoder.safetensors", "cpu")[0] for path in (finished, tmp_path)]
    assert digest(decoders[0]) == digest(decoders[1])


@pytest.mark.parametrize("sees_mean", [False, True], ids=["code", "code-and-mean"])
def test_decoder_and_critic_learn_from_what_concerns_them(sees_mean):
    model = with_decoder(sees_mean=sees_mean)
    network: Any = model.network
    decoder = model.painter
    assert decoder is not None
    torch.manual_seed(0)
    refining = Refining(decoder.requires_grad_(), Critic(network.frame, 4, width=8), network, CONFIG)
    real, painted, known = torch.rand(6, 1, 8, 8), torch.rand(6, 1, 8, 8, requires_grad=True), torch.randn(6, 4)
    telling, slope, taken = refining._judged(real, painted, known)
    critics = list(refining.critic.parameters())
    assert all(gradient.any() for gradient in torch.autograd.grad(telling + slope, critics, retain_graph=True))
    assert torch.autograd.grad(telling + slope, painted, retain_graph=True, allow_unused=True)[0] is None
    assert torch.autograd.grad(taken, painted, retain_graph=True)[0].any()
    assert not any(torch.autograd.grad(taken, critics, allow_unused=True))
    frames = torch.from_numpy(squares().x_train[:24]).movedim(-1, 1).float().div(255).unflatten(0, (4, 6))
    refining.train()(frames).loss.backward()
    assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in refining.parameters())


def test_the_slope_of_a_critic_is_that_of_its_gradient():
    network: Any = saved().network
    refining = Refining(
        CrispConfig(width=8, blocks=1).build(network.frame, 4), Critic(network.frame, 4), network, CONFIG
    )
    slopes = torch.randn(64)

    class Plane(torch.nn.Module):
        def forward(self, frames, codes):
            return (2 * frames - 1).flatten(1) @ slopes  # its gradient on the scale from -1 to 1

    refining.critic = Plane()  # type: ignore[assignment]
    frames = torch.rand(4000, 1, 8, 8)
    _, slope, _ = refining._judged(frames, frames, torch.zeros(4000, 4))
    assert float(slope) == pytest.approx(2 * float(slopes.square().sum()), rel=0.1)


def test_what_is_painted_becomes_like_the_frames():
    """Of pictures that are dark by a number alone, that number learns how bright frames are."""
    network: Any = saved().network
    torch.manual_seed(0)
    refining = Refining(tiny_decoder(network), Critic(network.frame, 4, width=8), network, CONFIG)
    brightness = torch.nn.Parameter(torch.tensor(0.1))
    optimizer = torch.optim.Adam([*refining.critic.parameters(), brightness], 1e-2)
    for _ in range(100):
        real, painted = 0.7 + 0.1 * torch.randn(16, 1, 8, 8), brightness + 0.1 * torch.randn(16, 1, 8, 8)
        telling, slope, taken = refining._judged(real, painted, torch.zeros(16, 4))
        optimizer.zero_grad()
        (telling + 0.05 * slope + taken).backward()
        optimizer.step()
    assert abs(brightness.item() - 0.7) < 0.15


def test_the_energy_distance_is_without_bias_and_finds_what_differs():
    torch.manual_seed(0)
    ours, theirs = torch.randn(4000, 20, 3, dtype=torch.float64), torch.randn(4000, 30, 3, dtype=torch.float64)
    alike = energy_distance(ours, theirs)
    assert alike.shape == (4000,)
    assert abs(float(alike.mean())) < 5 * float(alike.std()) / 4000**0.5
    assert energy_distance(ours + 1, theirs).mean() > 0.5
    point = torch.zeros(1, 3)
    assert float(energy_distance(point, point + torch.tensor([3.0, 4.0, 0.0]))) == pytest.approx(10)  # of single ones


# --- What cannot be done --------------------------------------------------------------------------------------------


def test_a_model_without_a_crisp_decoder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="tiny has no crisp decoder to refine; train one first"):
        trainer(tmp_path, model=saved())


def test_a_run_of_another_kind_is_not_resumed(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match=r"other settings; resume with the same ones: realism 0\.03, not 0\.5$"):
        trainer(tmp_path, replace(CONFIG, realism=0.5), resume=True)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"realism": 0.0}, "realism must be positive, got 0.0"),
        ({"smoothness": -1.0}, "smoothness must not be negative, got -1.0"),
        ({"critic_width": 0}, "critic_width must be at least 1, got 0"),
        ({"batch_frames": 0}, "batch_frames must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, said):
    with pytest.raises(ValueError, match=said):
        RefiningConfig(**setting)


def test_the_command_refines_and_says_where_the_model_is(run, tmp_path):
    save_model(with_decoder(), tmp_path / "model")
    squares().save(tmp_path / "squares.npz")
    options = ["--epochs", "1", "--batch-frames", "8", "--clusters", "2", "3", "--critic-width", "4"]
    where = ["--dataset", str(tmp_path / "squares.npz"), "-o", str(tmp_path / "out")]
    code, out, err = run("refine-decoder", str(tmp_path / "model"), *options, *where)
    assert (code, err) == (0, "")
    assert "vbmem export" in out
    assert load_model(tmp_path / "out").painter is not None
    save_model(saved(), tmp_path / "plain")
    where = ["--dataset", str(tmp_path / "squares.npz"), "-o", str(tmp_path / "none")]
    code, out, err = run("refine-decoder", str(tmp_path / "plain"), *where)
    assert code != 0
    assert "has no crisp decoder to refine" in err
