"""A crisp decoder is trained over a frozen model, which stays as it is, in the loop that trains models."""

import io
import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

import vbmem
from tiny import DATA, squares, tiny_network
from train.runs import assert_same_remains, log_lines
from train.test_resume import stop_after
from vbmem.errors import CheckpointError, DataError, ModelError
from vbmem.files import read_tensors
from vbmem.models import CrispConfig, SavedModel, fingerprint, load_model, save_model
from vbmem.models.directory import digest
from vbmem.nets import CrispDecoder
from vbmem.train import PaintingConfig, read_run
from vbmem.train.interrupt import StoppedBetweenSteps
from vbmem.train.painting import DecoderTrainer, Painting

CONFIG = PaintingConfig(
    CrispConfig(width=8, blocks=1), epochs=2, batch_frames=8, learning_rate=1e-2, averaging=0.9, clusters=(2, 3)
)
BATCHES = 9


def saved(name: str = "mixture", **changes: Any) -> SavedModel:
    network = tiny_network(name, channels=1).requires_grad_(False)
    return SavedModel(network, "tiny", data=DATA, **changes)


def trainer(run_dir, config=CONFIG, model=None, **options) -> Any:
    console = Console(file=io.StringIO())
    return DecoderTrainer(config, model or saved(), squares(), run_dir, console=console, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a whole run."""
    run_dir = tmp_path_factory.mktemp("whole")
    trainer(run_dir).run()
    return run_dir


def test_a_run_leaves_a_model_with_a_decoder(finished):
    loaded = load_model(finished)
    assert isinstance(loaded.painter, CrispDecoder)
    assert loaded.painter.settings["width"] == 8
    assert not loaded.painter.training
    assert loaded.name == finished.name
    assert loaded.data == DATA
    assert "2 epochs of squares at 0.01" in loaded.card["crisp decoder"]
    tensors, _ = read_tensors(finished / "decoder.safetensors", "cpu")
    assert all(torch.equal(tensor, tensors[f"network: {name}"]) for name, tensor in loaded.painter.state_dict().items())
    best = read_tensors(finished / "last.safetensors", "cpu")[0]
    assert all(
        torch.equal(tensor, best[name.replace("network: ", "best: decoder.")]) for name, tensor in tensors.items()
    )


def test_the_model_itself_stays_as_it_is(finished):
    before, loaded = saved().network, load_model(finished)
    assert digest(loaded.network.state_dict()) == digest(before.state_dict())
    assert loaded.fingerprint == fingerprint(before)


def test_the_log_is_that_of_every_run(finished):
    lines = log_lines(finished)
    assert [line["epoch"] for line in lines] == [1, 2]
    for line in lines:
        assert set(line["train"]) == {"minus_velocity_error", "shortcut_error"}
        assert set(line["valid"]) == {"minus_velocity_error", "shortcut_error", "standard_error", "episodes"}
    made = trainer(finished, resume=True)
    made.run()
    assert made.progress.epoch == 2


@pytest.mark.parametrize("batches", [1, BATCHES + 5])
def test_a_resumed_run_equals_an_undisturbed_one(batches, finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, batches, StoppedBetweenSteps)
        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path).run()
    assert (load_model(tmp_path).painter is None) == (batches < BATCHES)  # no epoch, nothing to keep
    torch.manual_seed(12345)
    trainer(tmp_path, resume=True).run()
    assert_same_remains(finished, tmp_path)
    decoders = [read_tensors(path / "decoder.safetensors", "cpu")[0] for path in (finished, tmp_path)]
    assert digest(decoders[0]) == digest(decoders[1])


@pytest.mark.parametrize("name", ["vae", "sees recall"])
def test_decoders_of_models_without_and_with_a_memory_learn(name, tmp_path):
    config = replace(CONFIG, epochs=3, decoder=CrispConfig(width=8, blocks=1, sees_mean=name == "vae"))
    trainer(tmp_path, config, saved(name)).run()
    first, *_, last = (line["train"]["minus_velocity_error"] for line in log_lines(tmp_path))
    assert last > first
    assert load_model(tmp_path).painter is not None


def test_shortcuts_are_learned_in_episodes_of_all_sizes_of_memories(monkeypatch):
    network: Any = saved().network
    painting = Painting(CONFIG.decoder.build(network.frame, 4), network, (2, 3)).train()
    given = torch.arange(32.0).reshape(2, 16, 1, 1, 1).expand(2, 16, 1, 8, 8)
    seen = []
    monkeypatch.setattr(type(painting.codes), "__call__", lambda self, frames: frames.flatten(2)[..., :4])
    original = painting.decoder.errors

    def noted(frames, codes, *args, **kwargs):
        seen.append((frames[:, 0, 0, 0], codes[:, 0]))
        return original(frames, codes, *args, **kwargs)

    monkeypatch.setattr(painting.decoder, "errors", noted)
    painting(given)
    ((frames, codes),) = seen
    assert torch.equal(frames, codes)
    assert frames[:4].tolist() == [0, 16, 1, 17]


# --- Saving and loading ---------------------------------------------------------------------------------------------


def with_decoder(**settings: Any) -> SavedModel:
    model = saved()
    torch.manual_seed(0)
    decoder = CrispConfig(width=8, blocks=1, **settings).build(model.network.frame, 4)
    return replace(model, painter=decoder.eval().requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_decoder_is_saved_and_loaded_with_its_model(dtype, tmp_path):
    model = with_decoder(sees_mean=True, attention=False)
    save_model(model, tmp_path, dtype=dtype)
    loaded = load_model(tmp_path)
    assert model.painter is not None
    assert loaded.painter is not None
    assert loaded.painter.settings == model.painter.settings
    for name, tensor in loaded.painter.state_dict().items():
        assert torch.equal(tensor, model.painter.state_dict()[name].to(dtype).float())
    save_model(replace(loaded, painter=None), tmp_path)
    assert not (tmp_path / "decoder.safetensors").exists()
    assert load_model(tmp_path).painter is None


def test_a_model_without_a_decoder_is_described_as_before(tmp_path):
    save_model(saved(), tmp_path)
    assert "decoder" not in json.loads((tmp_path / "config.json").read_text())


def test_a_missing_or_foreign_decoder_is_one_sentence(tmp_path):
    save_model(with_decoder(), tmp_path)
    weights = tmp_path / "decoder.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    with pytest.raises(ModelError, match=r"decoder\.safetensors is missing; save or download the model again"):
        vbmem.load(tmp_path)
    shutil.copy(tmp_path / "model.safetensors", weights)
    with pytest.raises(ModelError, match=r"does not hold the weights that its config\.json describes"):
        vbmem.load(tmp_path)
    weights.write_bytes(content[:100])
    with pytest.raises(ModelError, match="damaged"):
        vbmem.load(tmp_path)


# --- What cannot be done --------------------------------------------------------------------------------------------


def test_other_settings_or_another_model_cannot_go_on(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    other = saved("mixture")
    with torch.no_grad():
        next(other.network.decoder.parameters()).add_(1)
    rate, named = replace(CONFIG, learning_rate=2e-2), f"learning_rate {CONFIG.learning_rate}, not 0.02"
    for config, model, said in ((rate, None, named), (CONFIG, other, "the model, which had other weights")):
        with pytest.raises(CheckpointError, match=f"other settings; resume with the same ones: {said}$"):
            trainer(tmp_path, config, model, resume=True)


def test_a_directory_in_use_is_left_alone(finished, tmp_path):
    save_model(saved(), tmp_path)
    for directory in (finished, tmp_path):
        with pytest.raises(CheckpointError, match="holds a model or a run already; resume it, or choose another"):
            trainer(directory)
    with pytest.raises(CheckpointError, match="not the settings of a training run"):
        read_run(finished)


def test_a_model_without_codes_or_data_is_refused(tmp_path):
    with pytest.raises(ModelError, match="tiny is a DKM, which has no code of each frame alone"):
        trainer(tmp_path, model=saved("dkm"))
    with pytest.raises(ModelError, match="tiny does not say what it was trained on"):
        trainer(tmp_path, model=replace(saved(), data=None))


def test_more_sizes_of_memories_than_episodes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="memories of 3 sizes need as many episodes in a batch, and 8 frames are 2"):
        trainer(tmp_path, replace(CONFIG, clusters=(2, 3, 4)))


def test_more_frames_in_a_batch_than_there_are_pictures_are_refused_in_its_own_words(tmp_path):
    with pytest.raises(DataError, match=r"a batch of 4000 frames needs .* lower batch_frames \(--batch-frames\)"):
        trainer(tmp_path, replace(CONFIG, batch_frames=4000))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="batch_frames must be at least 1, got 0"):
        PaintingConfig(batch_frames=0)
    with pytest.raises(ValueError, match="a stage needs at least one epoch, got 0"):
        PaintingConfig(epochs=0).run(DATA, saved().network.config)


def test_the_command_trains_resumes_and_says_where_the_model_is(run, tmp_path):
    save_model(saved("vae"), tmp_path / "model")
    squares().save(tmp_path / "squares.npz")
    options = ["--epochs", "1", "--batch-frames", "8", "--decoder.width", "4", "--decoder.blocks", "1"]
    where = ["--dataset", str(tmp_path / "squares.npz"), "-o", str(tmp_path / "out")]
    command = ["train-decoder", str(tmp_path / "model"), *options, *where]
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert "vbmem export" in out
    assert load_model(tmp_path / "out").painter is not None
    code, out, err = run(*command)
    assert code == 2
    assert "holds a run already; add --resume to go on, or choose another --out" in err
    assert run(*command, "--resume")[0] == 0
