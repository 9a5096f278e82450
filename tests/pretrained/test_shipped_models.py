"""The models that come with the package are the ones that were trained: weights, behaviour, card."""

from pathlib import Path

import pytest
import torch
from tiny_pretrained import waves

import vbmem
from vbmem.pretrained import load_network, shipped
from vbmem.pretrained.directory import fingerprint

# Bound in nats a frame of 64 `waves`, which are no digits, after torch.manual_seed(0), and fingerprint of the weights.
GOLDEN = {
    "cifar10-mixture": (676.25, "c4fb6d13eb8857de"),
    "cifar10-tree": (594.06, "acac6cf554a4bef9"),
    "cifar10-vae": (1035.50, "0b033e609bb4a581"),
    "digits-mixture": (-59248.66, "bc0bafb991b7c21d"),
}


def test_every_shipped_model_is_covered():
    assert shipped() == sorted(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_shipped_model_is_what_it_was(name):
    network, loaded_name, _, sizes = load_network(name)
    bound, weights = GOLDEN[name]
    assert (loaded_name, sizes, fingerprint(network)) == (name, {}, weights)
    torch.manual_seed(0)
    with torch.no_grad():
        evidence = network(waves(64, network.frame.size, network.frame.channels).unsqueeze(0)).per_frame()
    assert float(evidence["elbo_per_frame"]) == pytest.approx(bound, abs=0.5, rel=1e-4)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_shipped_model_is_no_larger_than_it_must_be(name):
    directory = Path(vbmem.__file__).parent / "weights" / name
    network = load_network(name).network
    numbers = sum(tensor.numel() for tensor in network.state_dict().values())
    assert (directory / "model.safetensors").stat().st_size < 2.1 * numbers + 10_000  # half precision
    assert {path.name for path in directory.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert f"# {name}" in (directory / "README.md").read_text()


def test_a_name_may_be_a_path():
    assert vbmem.load(Path("cifar10-mixture")).fingerprint == GOLDEN["cifar10-mixture"][1]
