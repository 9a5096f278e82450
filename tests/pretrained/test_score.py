"""Scores: has a memory seen such a picture? What they are compared to, and from where on a picture is known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vbmem
from memory_files import rewrite
from tiny import KINDS, seeded, tiny_model, waves
from vbmem.commands import trained_models
from vbmem.data.examples import photograph_crops
from vbmem.data.settings import DataConfig
from vbmem.errors import DataError, ModelError
from vbmem.models.directory import REFERENCE
from vbmem.pretrained import novelty

COLOURS = torch.cartesian_prod(*3 * [torch.linspace(0, 1, 4)])[..., None, None]


def crops(name, seed, count=64):
    return torch.from_numpy(photograph_crops(name, count, 32, seed)).permute(0, 3, 1, 2)


@pytest.fixture(scope="module")
def written(shipped_model):
    return shipped_model.write(crops("china", 0), generator=seeded())


def test_what_was_written_is_known_better_than_the_like_and_that_better_than_the_rest(shipped_model, written):
    scores = [shipped_model.score(written, crops(*which)) for which in (("china", 0), ("china", 1), ("flower", 0))]
    seen, alike, other = (values.mean() for values in scores)
    assert seen > alike > other
    assert (scores[0].unsqueeze(-1) > scores[2]).float().mean() > 0.99  # the area under the curve
    assert (scores[1].unsqueeze(-1) > scores[2]).float().mean() > 0.9


def test_most_of_the_like_are_known_and_most_others_new(shipped_model, written):
    threshold = shipped_model.threshold(written)
    assert (shipped_model.score(written, crops("china", 0)) >= threshold).all()
    assert (shipped_model.score(written, crops("china", 1)) >= threshold).float().mean() > 0.7
    assert (shipped_model.score(written, crops("flower", 0)) >= threshold).float().mean() < 0.2


def test_plain_colours_are_new(shipped_model, written):
    plain = COLOURS.expand(-1, -1, 32, 32)
    known = shipped_model.score(written, plain) >= shipped_model.threshold(written)
    assert known.float().mean() < 0.05  # the sky of that photograph is nearly white


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_reference_scores_by_the_code_alone(kind):
    model = tiny_model(kind)
    memory, frames = model.write(waves(12, 8), generator=seeded()), waves(3, 8, seed=1)
    assert model.reference is None
    assert torch.equal(model.score(memory, frames), memory.score(model.encode(frames).mean))
    assert memory.threshold is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_the_difference_to_the_reference(kind):
    model = tiny_model(kind).with_reference(waves(30, 8, seed=2))
    memory, frames = model.write(waves(12, 8), generator=seeded()), waves(3, 8, seed=1)
    reference, codes, noise_var = model.reference, model.encode(frames).mean, float(model.memory.noise_var)
    assert reference is not None
    expected = memory.score(codes) - reference.score(codes)
    for sign, known in ((-1, memory), (1, reference)):
        expected += sign * novelty.MEAN_WEIGHT * (codes - known.mean_code).square().sum(-1) / (2 * noise_var)
    torch.testing.assert_close(model.score(memory, frames), expected, rtol=1e-4, atol=1e-2)
    assert model.score(memory, frames).isfinite().all()
    assert torch.equal(model.score_codes(memory, codes), model.score(memory, frames))


# --- The threshold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("frames", "start"), [(4, None), (11, None), (40, None), (40, "random")])
def test_the_threshold_is_that_of_memories_written_without_the_frames(frames, start):
    """As the same memories say one by one, from the same start."""
    model = tiny_model("mixture", iterations=9).with_reference(waves(30, 8, seed=2))
    codes = model.encode(waves(frames, 8)).mean
    memory, each = model.write_codes(codes, start=start), frames // 4
    scores = []
    for fold in range(4):
        left_out = torch.zeros(frames, dtype=torch.bool)
        left_out[fold : 4 * each : 4] = True
        others = [torch.arange(f, 4 * each, 4) for f in range(4) if f != fold]
        kept = codes[torch.cat([*others, torch.arange(4 * each, frames)])]
        part = vbmem.WrittenMemory.write(model.memory, kept, 3, start=start)
        scores.append(novelty.familiarity(part, model.reference, codes[left_out]))
    expected = float(torch.cat(scores).quantile(novelty.UNFAMILIAR_SHARE))
    assert memory.threshold == pytest.approx(expected, abs=0.05 * float(torch.cat(scores).std()) + 1)


def test_few_frames_have_no_threshold_and_many_do():
    model = tiny_model()
    assert model.write(waves(3, 8)).threshold is None
    assert model.threshold(model.write(waves(3, 8))) is None
    assert model.write(waves(novelty.LONG_EPISODE + 3, 8)).threshold is not None


def test_the_threshold_draws_nothing_from_the_generator_or_torch():
    model, generator = tiny_model(), seeded()
    model.write(waves(12, 8), generator=generator)
    after = generator.get_state()
    vbmem.WrittenMemory.write(model.memory, model.encode(waves(12, 8)).mean, 4, again := seeded())
    assert torch.equal(after, again.get_state())


def test_a_threshold_goes_with_the_reference_it_was_found_with():
    model = tiny_model()
    memory = model.write(waves(12, 8))
    compared = model.with_reference(waves(30, 8, seed=2))
    assert model.threshold(memory) == memory.threshold
    assert compared.threshold(memory) is None
    assert compared.threshold(compared.write(waves(12, 8))) is not None


def test_a_memory_that_is_changed_has_none():
    model = tiny_model()
    memory, codes = model.write(waves(12, 8)), model.encode(waves(6, 8, seed=1)).mean
    for changed in (memory.update(codes), memory.forget(model.encode(waves(12, 8)).mean[:2]), memory.merge(memory)):
        assert changed.threshold is None


def test_memory_files_without_a_threshold_are_read(tmp_path):
    model = tiny_model()
    memory = model.write(waves(12, 8))
    memory.save(path := tmp_path / "a.memory")
    assert vbmem.WrittenMemory.load(path).threshold == memory.threshold
    rewrite(path, written=json.dumps({"model": "tiny", "fingerprint": model.fingerprint, "frames": 12}))
    loaded = vbmem.WrittenMemory.load(path)
    assert loaded.threshold is None
    assert model.threshold(loaded) is None
    assert model.score(loaded, waves(2, 8)).isfinite().all()


# --- The reference memory on disk -----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> Path:
    tiny_model().with_reference(waves(30, 8, seed=2)).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_reference_is_saved_and_loaded_with_its_model(saved):
    model = tiny_model().with_reference(waves(30, 8, seed=2))
    loaded = vbmem.load(saved)
    memory = model.write(waves(12, 8), generator=seeded())
    assert loaded.fingerprint == model.fingerprint == tiny_model().fingerprint
    assert torch.equal(loaded.score(memory, waves(3, 8)), model.score(memory, waves(3, 8)))
    assert loaded.threshold(memory) == memory.threshold


def test_it_is_read_when_it_is_needed_and_goes_along_when_the_model_is_resized(saved):
    (saved / REFERENCE).write_bytes(b"nothing")
    model = vbmem.load(saved)
    assert model.encode(waves(2, 8)).mean.isfinite().all()
    assert tiny_model().with_reference(waves(30, 8)).resize(clusters=5).reference is not None


def test_export_carries_it(saved, tmp_path):
    trained_models.export(str(saved), tmp_path / "again")
    one, other = (vbmem.load(directory).reference for directory in (saved, tmp_path / "again"))
    assert one is not None
    assert other is not None
    assert torch.equal(one.state.row_mean, other.state.row_mean)


def test_a_model_without_one_leaves_none_behind(saved):
    tiny_model().save(saved)
    assert vbmem.load(saved).reference is None


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_damaged_reference_is_one_sentence(saved, kept):
    path = saved / REFERENCE
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"the reference memory of tiny cannot be read: .*damaged"):
        vbmem.load(saved).write(waves(2, 8))


def test_the_reference_of_another_model_is_refused(saved):
    other = tiny_model(spread=0.3).with_reference(waves(30, 8))
    assert other.reference is not None
    other.reference.save(saved / REFERENCE)
    with pytest.raises(ModelError, match=r"reference\.safetensors is of another model .*save or download"):
        vbmem.load(saved).write(waves(2, 8))


def digits_model(tmp_path, dataset):
    model = tiny_model(channels=1)
    replace(model, data=DataConfig(dataset)).save(tmp_path / "bare")
    return str(tmp_path / "bare")


def test_export_makes_one_where_the_data_set_is_at_hand(tmp_path, capsys):
    trained_models.export(digits_model(tmp_path, "digits"), tmp_path / "model")
    reference = vbmem.load(tmp_path / "model").reference
    assert reference is not None
    assert reference.frames == 2 * novelty.REFERENCE_PICTURES
    assert "without a reference" not in capsys.readouterr().out


@pytest.mark.parametrize("dataset", ["mnist", "celeba", "my-pictures"])
def test_export_makes_none_of_what_is_not_at_hand_or_not_to_be_given_away(dataset, tmp_path, capsys):
    source = digits_model(tmp_path, dataset)
    trained_models.export(source, tmp_path / "model", data_dir=tmp_path)
    assert not (tmp_path / "model" / REFERENCE).exists()
    assert "without a reference memory" in capsys.readouterr().out
    with pytest.raises((DataError, ValueError), match=r"is not at hand|pictures of people"):
        trained_models.export(source, tmp_path / "model", reference=True, data_dir=tmp_path)
