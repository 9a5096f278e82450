"""A fingerprint covers what a memory depends on, and nothing else."""

from dataclasses import replace

import pytest
import torch

from models.zoo import make
from tiny import MEMORY_MODELS, MODELS
from vbmem.models import FrameFormat, fingerprint
from vbmem.models.landed import landed_fingerprint


@pytest.mark.parametrize("name", MODELS)
def test_another_decoder_leaves_the_fingerprint_as_it_is(name):
    model = make(name)
    before, landed = fingerprint(model), landed_fingerprint(model)
    with torch.no_grad():
        for weights in model.decoder.parameters():
            weights += 1
    assert fingerprint(model) == before
    assert landed_fingerprint(model) != landed


@pytest.mark.parametrize("name", MODELS)
def test_every_other_weight_counts(name):
    model = make(name)
    seen = {fingerprint(model)}
    others = [tensor for key, tensor in model.state_dict().items() if not key.startswith("decoder.")]
    for tensor in others:
        tensor += 1
        seen.add(fingerprint(model))
    assert len(seen) == 1 + len(others)


def test_the_kind_and_the_prior_of_a_memory_count():
    model = make("mixture")
    before = fingerprint(model)
    model.memory = model.memory.with_prior(noise_var=3.0)
    other_prior = fingerprint(model)
    model.memory = make("shifted").memory.with_prior(noise_var=3.0)
    assert len({before, other_prior, fingerprint(model)}) == 3


def test_the_size_of_a_memory_does_not_count():
    torch.manual_seed(0)
    small = MEMORY_MODELS["mixture"].build(FrameFormat(8, 1))
    large = replace(MEMORY_MODELS["mixture"], clusters=9).build(FrameFormat(8, 1))
    large.load_state_dict(small.state_dict())
    assert fingerprint(small) == fingerprint(large)
