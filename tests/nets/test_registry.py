"""Encoder-decoder pairs are found by their names."""

import pytest
import torch
from torch import nn

from vbmem.errors import ModelError
from vbmem.models import MemoryConfig
from vbmem.nets import Decoder, Encoder, FrameFormat, Networks, build_networks, register
from vbmem.nets.registry import _registered

FRAME = FrameFormat(8, 1)


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    for name in set(_registered) - {"basic", "improved"}:
        monkeypatch.delitem(_registered, name)
    yield
    for name in set(_registered) - {"basic", "improved"}:
        del _registered[name]


@pytest.mark.parametrize(("name", "activation"), [("basic", nn.ReLU), ("improved", nn.SiLU)])
def test_the_papers_pairs_have_names(name, activation):
    networks = build_networks(name, FRAME, filters=4, embedding_size=6, code_size=3)
    assert isinstance(networks.encoder, Encoder)
    assert isinstance(networks.decoder, Decoder)
    assert networks.activation is activation
    frames = torch.rand(2, 1, 8, 8)
    assert networks.encoder(frames).shape == (2, 6)
    assert networks.decoder(torch.randn(2, 3)).log_prob(frames).shape == (2,)


def test_a_name_nobody_registered_is_refused_in_a_sentence():
    expected = r"no networks 'mine'; known are basic, improved: import the module that registers others"
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
