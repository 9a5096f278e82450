"""Memories that vbmem 0.1 wrote can still be used, by the models of their time and by those saved anew."""

import json
from pathlib import Path

import pytest
import torch
from tiny_pretrained import waves

import vbmem

LANDED = Path(__file__).parents[1] / "landed"
EXPECTED = json.loads((LANDED / "expected.json").read_text())
kinds = pytest.mark.parametrize("kind", ["mixture", "tree"])


@kinds
def test_a_landed_memory_holds_and_recalls_what_it_did(kind):
    model, memory = vbmem.load(LANDED / f"{kind}-model"), vbmem.WrittenMemory.load(LANDED / f"{kind}.memory")
    expected = EXPECTED[kind]
    assert (memory.frames, memory.fingerprint) == (expected["frames"], expected["fingerprint"])
    torch.testing.assert_close(memory.usage, torch.tensor(expected["usage"]))
    read = model.read(memory, waves(3, 8), 1, sample=False)[0].mean((1, 2, 3))
    torch.testing.assert_close(read, torch.tensor(expected["read"]))
    assert model.generate(memory, 2).isfinite().all()
    assert model.score(memory, waves(2, 8)).isfinite().all()


@kinds
def test_saved_anew_it_is_a_memory_of_today(kind, tmp_path):
    model, memory = vbmem.load(LANDED / f"{kind}-model"), vbmem.WrittenMemory.load(LANDED / f"{kind}.memory")
    memory.save(tmp_path / "new.memory")
    again = vbmem.WrittenMemory.load(tmp_path / "new.memory")
    assert torch.equal(
        memory.log_predictive(model.encode(waves(2, 8)).mean), again.log_predictive(model.encode(waves(2, 8)).mean)
    )


def test_a_landed_memory_of_another_model_is_refused():
    model, memory = vbmem.load(LANDED / "tree-model"), vbmem.WrittenMemory.load(LANDED / "mixture.memory")
    with pytest.raises(ValueError, match="this memory was written by the model 'tiny'"):
        model.generate(memory, 1)
