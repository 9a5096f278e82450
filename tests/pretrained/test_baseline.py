"""Models without a memory in a person's hands: new pictures, and the same again."""

import pytest
import torch

import vbmem
from tiny import MODELS, as_bytes, seeded, tiny_network, waves
from vbmem.errors import ModelError
from vbmem.models import FrameFormat, SavedModel, save_model
from vbmem.models.base import CodedModel
from vbmem.pretrained import Baseline, directory

every_baseline = pytest.mark.parametrize("kind", ["vae", "statistician", "dkm"])


@pytest.fixture
def saved(tmp_path):
    def save(kind, **options):
        save_model(SavedModel(tiny_network(kind, spread=0.1, **options), kind), tmp_path / kind)
        return tmp_path / kind

    return save


@every_baseline
def test_it_generates_and_reconstructs_pictures(saved, kind):
    model, pictures = vbmem.load_baseline(saved(kind)), waves(5, 8)
    assert isinstance(model, Baseline)
    assert model.name == kind
    new, again = (model.generate(pictures, 3, generator=seeded()) for _ in range(2))
    assert new.shape == (3, 3, 8, 8)
    assert torch.equal(new, again)
    same = model.reconstruct(pictures)
    assert same.shape == pictures.shape
    for shown in (new, same, model.generate(pictures, 3, sample_pixels=True, generator=seeded())):
        assert 0 <= shown.min() <= shown.max() <= 1
    assert not torch.equal(model.reconstruct(pictures, sample=True), same)


@every_baseline
def test_bytes_are_the_middle_of_the_interval_they_stand_for(saved, kind):
    model, pixels = vbmem.load_baseline(saved(kind)), torch.from_numpy(as_bytes(waves(5, 8))).movedim(-1, 1)
    torch.testing.assert_close(model.reconstruct(pixels), model.reconstruct((pixels + 0.5) / 256))


def test_a_long_episode_is_embedded_piece_by_piece_and_is_one_all_the_same(saved, monkeypatch):
    model, pictures = vbmem.load_baseline(saved("statistician")), waves(7, 8)
    whole = model.reconstruct(pictures)
    monkeypatch.setattr("vbmem.pretrained.picture_model.PIXELS", 3 * 64)
    torch.testing.assert_close(model.reconstruct(pictures), whole)


def test_binary_pictures_too(saved):
    model = vbmem.load_baseline(saved("dkm", likelihood="bernoulli", channels=1))
    drawn = model.generate(waves(4, 8, channels=1), 2, sample_pixels=True)
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}


def test_no_pictures_are_no_count(saved):
    with pytest.raises(ValueError, match="count must be"):
        vbmem.load_baseline(saved("vae")).generate(waves(2, 8), 0)


def test_either_loader_names_the_other(saved):
    with pytest.raises(ModelError, match=r"is a DKM, which has no memory to write; .* with vbmem\.load_baseline$"):
        vbmem.load(saved("dkm"))
    with pytest.raises(ModelError, match=r"cifar10-mixture is a model with a memory; load it with vbmem\.load$"):
        vbmem.load_baseline("cifar10-mixture")


@pytest.mark.parametrize("load", [vbmem.load, vbmem.load_baseline])
def test_a_model_that_is_neither_has_networks_only(monkeypatch, load):
    class Unlike(CodedModel):
        def forward(self, frames, copies=1):
            raise NotImplementedError

    saved = SavedModel(Unlike(MODELS["vae"], FrameFormat(8, 3)), "other")
    monkeypatch.setattr(directory, "load_network", lambda source, device: saved)
    with pytest.raises(ModelError, match=r"^other is a Unlike, which neither has a memory nor .*load_network"):
        load("other")


def test_it_prints_in_a_line_what_it_is():
    model = vbmem.load_baseline("cifar10-vae")
    assert repr(model) == f"<Baseline 'cifar10-vae': {model.network.config}, {model.frame}, 669,590 parameters>"


def test_the_shipped_vae_reconstructs_photographs(china):
    model = vbmem.load_baseline("cifar10-vae")
    pictures = torch.from_numpy(china).movedim(-1, 1)
    missed = (model.reconstruct(pictures) - pictures / 255).square().mean()
    assert missed < 0.2 * (pictures / 255).var()
