"""The models that come with the package are the ones that were trained: weights, behaviour, card."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vbmem
from tiny import waves
from vbmem.models.directory import fingerprint
from vbmem.models.memory_model import MemoryModel
from vbmem.pretrained import load_network, shipped

# Bound in nats a frame of 64 `waves`, which are no digits, after torch.manual_seed(0): as the paper writes, and as the
# model does; and fingerprint.
GOLDEN = {
    "cifar10-mixture": (1414.33, 1616.14, "33ae0610d1390392"),
    "cifar10-tree": (1365.91, 1414.02, "d4355ff3969e0fc7"),
    "cifar10-vae": (1035.50, 1035.50, "8c6303a201c06d81"),
    "digits-mixture": (-59248.66, -57447.57, "392f2fda07484f1c"),
    "omniglot-mixture": (-672.39, -674.33, "6376c2c4a2181ba3"),
}

SIZES = {"omniglot-mixture": {"rows": 0, "clusters": 1}}  # of memories that were resized after training
CRISP = ("cifar10-mixture",)  # paint crisp pictures


def test_every_shipped_model_is_covered():
    assert shipped() == sorted(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_shipped_model_is_what_it_was(name):
    saved = load_network(name)
    network = saved.network
    as_in_the_paper, bound, weights = GOLDEN[name]
    assert (saved.name, saved.sizes, fingerprint(network)) == (name, SIZES.get(name, {}), weights)
    frames = waves(64, network.frame.size, network.frame.channels).unsqueeze(0)

    def elbo() -> float:
        torch.manual_seed(0)
        with torch.no_grad():
            return float(network(frames).per_frame()["elbo_per_frame"])

    assert elbo() == pytest.approx(bound, abs=0.5, rel=1e-4)
    if isinstance(network, MemoryModel):
        network.memory.factorised, network.iterations = True, network.memory.default_iterations
    assert elbo() == pytest.approx(as_in_the_paper, abs=0.5, rel=1e-4)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_shipped_model_is_no_larger_than_it_must_be(name):
    directory = Path(vbmem.__file__).parent / "weights" / name
    network = load_network(name).network
    numbers = sum(tensor.numel() for tensor in network.state_dict().values())
    assert (directory / "model.safetensors").stat().st_size < 2.1 * numbers + 10_000  # half precision
    files = {path.name: path.stat().st_size for path in directory.iterdir()}
    if name != "cifar10-vae":  # which has no memory
        assert files.pop("reference.safetensors") < 200_000
    if name in CRISP:
        assert files.pop("decoder.safetensors") < 12_000_000
    assert files.keys() == {"config.json", "model.safetensors", "README.md"}
    card = (directory / "README.md").read_text()
    assert f"# {name}" in card
    if name != "cifar10-vae":
        assert f'vbmem.load("{name}")' in card  # whoever has the package need not know where it lies


@pytest.mark.parametrize("name", CRISP)
def test_a_crisp_picture_is_what_it_was(name):
    model = vbmem.load(name)
    frames = waves(4, model.frame.size, model.frame.channels)
    painted = model.decode(model.encode(frames).mean, paint_steps=1)
    golden = [[0.5105, 0.5745, 0.5750, 0.5180], [0.5240, 0.4200, 0.3325, 0.3834]]
    torch.testing.assert_close(painted[0, :, :16:8, ::8].mean(0), torch.tensor(golden), atol=2e-3, rtol=0)
    assert (
        painted.diff(dim=-1).abs().mean()
        > 2 * model.decode(model.encode(frames).mean, crisp=False).diff(dim=-1).abs().mean()
    )


@pytest.mark.parametrize(("frames", "kilobytes"), [(64, 116), (3000, 134)], ids=["few", "many"])
def test_a_memory_has_the_size_that_the_documents_give(frames, kilobytes):
    memory = vbmem.load("cifar10-mixture").memory
    codes = 2 * torch.randn(frames, 200, generator=torch.Generator().manual_seed(0))
    written = vbmem.WrittenMemory.write(memory, codes, generator=torch.Generator().manual_seed(0))
    assert round(written.nbytes / 1024) == kilobytes


def test_cards_say_which_models_paint_crisp_pictures():
    for name in GOLDEN:
        card = (Path(vbmem.__file__).parent / "weights" / name / "README.md").read_text()
        assert ("painted by a crisp decoder" in card) == (name in CRISP)


def test_a_name_may_be_a_path():
    assert vbmem.load(Path("cifar10-mixture")).fingerprint == GOLDEN["cifar10-mixture"][2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_told(tmp_path):
    model = vbmem.load("digits-mixture")
    model.write(torch.zeros(3, 1, 8, 8)).save(tmp_path / "a.memory")
    for load in (
        lambda: vbmem.load("digits-mixture", "cuda"),
        lambda: vbmem.WrittenMemory.load(tmp_path / "a.memory", "cuda"),
    ):
        with pytest.raises(ValueError, match="there is no CUDA device here to load onto"):
            load()


def test_using_a_shipped_model_loads_nothing_of_training():
    program = """
import sys, torch, vbmem
model = vbmem.load("digits-mixture")
model.generate(model.write(torch.rand(8, 1, 8, 8)), 2)
assert not [name for name in sys.modules if name.startswith("vbmem.train")], sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
