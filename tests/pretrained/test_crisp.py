"""A model with a crisp decoder paints what it shows; what it writes, scores and bounds stays the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import tyro
from PIL import Image
from torch import Tensor

import vbmem
from tiny import seeded, tiny_model, tiny_network, waves
from vbmem.commands import find_commands
from vbmem.models import CrispConfig
from vbmem.models.settings import PAINT_STEPS
from vbmem.nets import CrispDecoder
from vbmem.pretrained import Baseline
from vbmem.pretrained.picture_model import PIXELS

STEPS = 3


def painter(code_size: int = 4, **settings: Any) -> CrispDecoder:
    """Neither trained nor left where it starts."""
    torch.manual_seed(1)
    decoder = CrispConfig(width=8, blocks=1, **settings).build(tiny_network().frame, code_size)
    with torch.no_grad():
        for weights in decoder.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    return decoder.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def plain():
    return tiny_model()


@pytest.fixture(scope="module", params=[False, True], ids=["code", "code-and-mean"])
def crisp(request, plain):
    return replace(plain, painter=painter(sees_mean=request.param))


@pytest.fixture(scope="module")
def memory(plain):
    return plain.write(waves(6, 8), generator=seeded())


def test_pictures_are_crisp_by_default_and_means_on_request(plain, crisp, memory):
    codes = plain.encode(waves(6, 8)).mean
    means = plain.decode(codes)
    assert torch.equal(crisp.decode(codes, crisp=False), means)
    expected = crisp.painter.paint(
        codes, PAINT_STEPS, crisp.painter.noise(6), means if crisp.painter.sees_mean else None
    )
    assert torch.equal(crisp.decode(codes), expected)
    assert torch.equal(crisp.decode(codes, crisp=True), expected)
    assert not torch.equal(crisp.decode(codes, paint_steps=4), expected)
    assert not torch.equal(crisp.decode(codes, generator=seeded(5)), expected)
    generated = crisp.generate(memory, 5, generator=seeded())
    assert generated.shape == (5, 3, 8, 8)
    mean = crisp.generate(memory, 5, crisp=False, generator=seeded())
    assert torch.equal(mean, plain.generate(memory, 5, generator=seeded()))
    assert not torch.equal(generated, mean)


def test_codes_of_any_shape_and_number_are_painted(crisp):
    count = PIXELS // 64 // 2 + 1  # twice as many are more than go through the networks at a time
    codes = torch.randn(2, count, 4)
    painted = crisp.decode(codes, paint_steps=1)
    assert painted.shape == (2, count, 3, 8, 8)
    noise = crisp.painter.noise(2 * count)[-1:]
    means = crisp.decode(codes[-1:, -1], crisp=False) if crisp.painter.sees_mean else None
    torch.testing.assert_close(painted[-1, -1:], crisp.painter.paint(codes[-1, -1:], 1, noise, means))


def test_sampled_pixels_are_those_of_mean_pictures(plain, crisp, memory):
    for model in (plain, crisp):
        drawn = [m.generate(memory, 3, sample_pixels=True, generator=seeded()) for m in (plain, model)]
        assert torch.equal(*drawn)
        read = [m.read(memory, waves(2, 8), 2, sample_pixels=True, generator=seeded()) for m in (plain, model)]
        assert torch.equal(*read)


@pytest.fixture
def painted(monkeypatch):
    """Codes and noise of everything that is painted, in order."""
    seen: list[tuple[Tensor, Tensor]] = []
    paint = CrispDecoder.paint

    def noted(self, codes, steps, noise, means=None):
        seen.append((codes, noise))
        return paint(self, codes, steps, noise, means)

    monkeypatch.setattr(CrispDecoder, "paint", noted)
    return seen


@pytest.mark.parametrize("sample", [True, False])
def test_reading_goes_through_mean_pictures_and_paints_each_from_one_noise(sample, plain, crisp, memory, painted):
    pictures = waves(4, 8, seed=2)
    means = plain.read(memory, pictures, STEPS, sample=sample, generator=seeded())
    assert crisp.read(memory, pictures, STEPS, sample=sample, generator=seeded()).shape == means.shape
    codes, noises = zip(*painted, strict=True)
    assert len(noises) == STEPS
    assert all(torch.equal(noise, noises[0]) for noise in noises)
    assert torch.equal(torch.stack([plain.decode(step) for step in codes]), means)
    assert torch.equal(crisp.read(memory, pictures, STEPS, sample=sample, crisp=False, generator=seeded()), means)


def test_what_was_drawn_is_read_through_crisp_pictures_each_from_one_noise(plain, crisp, memory, painted):
    generated = crisp.generate(memory, 5, reads=3, generator=seeded())
    assert len(painted) == 4
    random = seeded()
    codes, noise = memory.sample(5, random), crisp.painter.noise(5, random)
    for _ in range(3):
        shown = crisp._paint(crisp.painter, codes, noise, 1)
        codes = memory.read(plain.encode(shown).mean, sample=False)
    assert torch.equal(generated, crisp._paint(crisp.painter, codes, noise, PAINT_STEPS))


def test_only_the_end_is_painted_where_only_the_end_is_wanted(plain, crisp, memory, painted):
    pictures = waves(4, 8, seed=2)
    whole = crisp.read(memory, pictures, STEPS, generator=seeded())
    painted.clear()
    last = crisp.read(memory, pictures, STEPS, every_step=False, generator=seeded())
    assert torch.equal(last, whole[-1])
    assert len(painted) == 1
    plain_last = plain.read(memory, pictures, STEPS, every_step=False, generator=seeded())
    assert torch.equal(plain_last, plain.read(memory, pictures, STEPS, generator=seeded())[-1])


def test_missing_pixels_are_filled_with_mean_pictures(plain, crisp, memory):
    pictures, known = waves(2, 8, seed=2), torch.ones(2, 1, 8, 8, dtype=torch.bool)
    known[..., 4:] = False
    settings: dict[str, Any] = {"known": known, "sample": False, "crisp": False}
    assert torch.equal(crisp.read(memory, pictures, 2, **settings), plain.read(memory, pictures, 2, **settings))
    assert crisp.read(memory, pictures, 2, known=known, sample=False).shape == (2, 2, 3, 8, 8)


def test_what_is_written_scored_and_bounded_does_not_depend_on_it(plain, crisp, memory):
    pictures = waves(5, 8, seed=3)
    assert crisp.fingerprint == plain.fingerprint
    written = crisp.write(waves(6, 8), generator=seeded())
    assert torch.equal(written.state.row_mean, memory.state.row_mean)
    assert torch.equal(crisp.score(memory, pictures), plain.score(memory, pictures))
    bounds = [model.bound(memory, pictures, generator=seeded()) for model in (crisp, plain)]
    assert torch.equal(*bounds)


def test_it_is_saved_and_loaded_with_its_model(crisp, memory, tmp_path):
    crisp.resize(clusters=4).save(tmp_path)
    loaded = vbmem.load(tmp_path)
    expected = crisp.generate(memory, 3, generator=seeded())
    torch.testing.assert_close(loaded.generate(memory, 3, generator=seeded()), expected)


def test_baselines_paint_too():
    network = tiny_network("vae").requires_grad_(False)
    plain = Baseline(network, "tiny")
    crisp = replace(plain, painter=painter())
    pictures = waves(4, 8)
    for call in (lambda m, **how: m.reconstruct(pictures, **how), lambda m, **how: m.generate(pictures, 4, **how)):
        mean = call(plain, generator=seeded())
        assert torch.equal(call(crisp, crisp=False, generator=seeded()), mean)
        assert not torch.equal(call(crisp, generator=seeded()), mean)


def test_what_cannot_be_painted_is_refused_in_a_sentence(plain, crisp, memory):
    with pytest.raises(ValueError, match="tiny has no decoder for crisp pictures; leave out crisp, or train one"):
        plain.generate(memory, 1, crisp=True)
    with pytest.raises(ValueError, match="tiny has no decoder for crisp pictures"):
        plain.read(memory, waves(1, 8), crisp=True)
    with pytest.raises(ValueError, match="pixels are sampled around mean pictures, not crisp ones"):
        crisp.generate(memory, 1, crisp=True, sample_pixels=True)
    with pytest.raises(ValueError, match="painted in at least 1 step, got 0"):
        crisp.generate(memory, 1, paint_steps=0)


def test_commands_paint_unless_mean_pictures_are_asked_for(crisp, memory, folder, tmp_path):
    crisp.save(tmp_path / "model")
    memory.save(tmp_path / "my.memory")

    def sheet(name: str, *arguments: str) -> bytes:
        files = [str(tmp_path / "my.memory"), *([str(folder)] if name == "read" else [])]
        where = ["--model", str(tmp_path / "model"), "-o", str(tmp_path / "sheet.png")]
        tyro.cli(find_commands()[name], args=[*files, *where, *arguments])
        with Image.open(tmp_path / "sheet.png") as picture:
            return picture.tobytes()

    for name, short in (("generate", ["-n", "2"]), ("read", ["--steps", "2"])):
        painted = sheet(name, *short)
        assert painted == sheet(name, *short)
        assert painted != sheet(name, *short, "--mean-pictures")
        assert painted != sheet(name, *short, "--paint-steps", "4")
