"""Encoder-decoder pairs are found by their names."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tiny import MODELS, tiny_run, tiny_trainer
from vbmem.errors import ModelError
from vbmem.models import MemoryConfig, load_model, save_model
from vbmem.nets import Decoder, Encoder, FrameFormat, Networks, build_networks, pixels_class, register
from vbmem.nets.registry import _registered

FRAME = FrameFormat(8, 1)


class FlatDecoder(nn.Module):
    """One dense layer from codes to the pixels."""

    def __init__(self, frame, code_size):
        super().__init__()
        self.shape, self.pixels = (-1, frame.size, frame.size), pixels_class(frame.likelihood)
        outputs = self.pixels.parameters_per_pixel * frame.channels * frame.size**2
        self.layer = nn.Linear(code_size, outputs)

    def forward(self, codes):
        return self.pixels.from_network(self.layer(codes).unflatten(1, self.shape))


def flat(frame, filters, embedding_size, code_size):
    """A pair of one's own."""
    inputs = frame.channels * frame.size**2
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, filters), nn.Tanh(), nn.Linear(filters, embedding_size))
    return Networks(encoder, FlatDecoder(frame, code_size), nn.Tanh)


@pytest.fixture(autouse=True)
def _restored():
    before = dict(_registered)
    yield
    _registered.clear()
    _registered.update(before)


@pytest.mark.parametrize(("name", "activation"), [("basic", nn.ReLU), ("improved", nn.SiLU)])
def test_the_papers_pairs_have_names(name, activation):
    networks = build_networks(name, FRAME, filters=4, embedding_size=6, code_size=3)
    assert isinstance(networks.encoder, Encoder)
    assert isinstance(networks.decoder, Decoder)
    assert networks.activation is activation
    frames = torch.rand(2, 1, 8, 8)
    assert networks.encoder(frames).shape == (2, 6)
    assert networks.decoder(torch.randn(2, 3)).log_prob(frames).shape == (2,)


TOGETHER = list(itertools.product(("batch", "group"), ("relu", "swish"), ("up-first", "up-last")))


@pytest.mark.parametrize("parts", TOGETHER, ids="-".join)
def test_norm_activation_and_order_can_be_chosen_apart(parts):
    norm, activation, order = parts
    networks: Any = build_networks("-".join(parts), FRAME, filters=4, embedding_size=6, code_size=3)
    for network in (networks.encoder, networks.decoder):
        kinds = {type(module) for module in network.modules()}
        assert (nn.BatchNorm2d in kinds) == (norm == "batch")
        assert any(issubclass(kind, nn.GroupNorm) for kind in kinds) == (norm == "group")
        assert (nn.ReLU in kinds, nn.SiLU in kinds) == (activation == "relu", activation == "swish")
    first = networks.decoder.blocks[0]
    assert isinstance(first, nn.ConvTranspose2d) == (order == "up-first")
    seed = networks.decoder.to_seed.weight  # [64, 3]
    assert torch.allclose(seed.mT @ seed, torch.eye(3), atol=1e-5) == (order == "up-last")


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("parts", TOGETHER, ids="-".join)
def test_a_linear_map_is_added_to_what_either_network_says(parts, likelihood):
    style, frame = "-".join((*parts, "linear")), FrameFormat(8, 1, likelihood)
    networks: Any = build_networks(style, frame, filters=4, embedding_size=6, code_size=3)
    encoder, decoder = networks.encoder.eval(), networks.decoder.eval()
    frames, codes = torch.rand(2, 1, 8, 8), torch.randn(2, 3)
    both, said = encoder(frames), decoder(codes)
    assert decoder.linear.weight.shape == (64, 3)
    with torch.no_grad():
        map_of_codes = decoder.linear(codes).reshape(2, 1, 8, 8)
        encoder.to_embedding.weight.zero_()
        decoder.linear.weight.zero_()
    convolved = decoder(codes)
    torch.testing.assert_close(encoder(frames), (2 * frames - 1).flatten(1) @ encoder.linear.weight.mT)
    assert not torch.allclose(encoder(frames), both)
    torch.testing.assert_close(said.mean.logit(), convolved.mean.logit() + map_of_codes)
    if likelihood == "gaussian":
        torch.testing.assert_close(said.std, convolved.std)


@pytest.mark.parametrize(("name", "same"), [("basic", "batch-relu-up-first"), ("improved", "group-swish-up-last")])
def test_the_papers_pairs_are_two_of_them(name, same):
    made = []
    for style in (name, same):
        torch.manual_seed(0)
        made.append(build_networks(style, FRAME, filters=4, embedding_size=6, code_size=3))
    frames = torch.rand(2, 1, 8, 8)
    assert torch.equal(made[0].encoder(frames), made[1].encoder(frames))
    assert str(made[0].decoder) == str(made[1].decoder)


def test_a_name_nobody_registered_is_refused_in_a_sentence():
    expected = r"no networks 'mine'; known are basic, improved, .*: import the module that registers others"
    with pytest.raises(ModelError, match=expected):
        build_networks("mine", FRAME, 4, 6, 3)
    with pytest.raises(ModelError, match=expected):
        MemoryConfig(style="mine").build(FRAME)


def test_a_name_is_taken_by_one_function_only():
    def another(frame, filters, embedding_size, code_size):
        return Networks(nn.Identity(), nn.Identity())

    with pytest.raises(ValueError, match=r"'basic' are already made by vbmem\.nets\.convolutional; choose another"):
        register("basic")(another)


def test_a_function_defined_again_replaces_itself():
    made = []
    for number in range(2):

        @register("notebook")
        def mine(frame, filters, embedding_size, code_size, number=number):
            made.append(number)
            return Networks(nn.Identity(), nn.Identity())

    build_networks("notebook", FRAME, 4, 6, 3)
    assert made == [1]


@pytest.mark.parametrize(
    "model",
    [replace(MODELS[name], style="flat") for name in ("vae", "dkm", "statistician", "mixture")],
    ids=lambda model: model.kind,
)
def test_a_pair_of_ones_own_is_trained_saved_and_loaded_by_its_name(model, tmp_path):
    register("flat")(flat)
    trainer = tiny_trainer(tiny_run(model, epochs=1), tmp_path / "run")
    trainer.run()
    save_model(load_model(tmp_path / "run"), tmp_path / "saved")

    del _registered["flat"]
    for name in ("run", "saved"):
        with pytest.raises(ModelError, match=r"config\.json .*: there are no networks 'flat'; .*import the module"):
            load_model(tmp_path / name)

    register("flat")(flat)
    best = trainer.model.state_dict()
    for name in ("run", "saved"):
        loaded = load_model(tmp_path / name).network
        assert isinstance(loaded.decoder, FlatDecoder)
        assert loaded.config == model
        assert all(torch.equal(tensor, best[key]) for key, tensor in loaded.state_dict().items())
