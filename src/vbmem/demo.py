"""The demonstration: train a small model on digits, write an episode into memory, generate from the memory alone."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rich.console import Console

from vbmem.data import load_images
from vbmem.models import MemoryModel
from vbmem.paper.presets import get_preset
from vbmem.pictures import grid, save_picture
from vbmem.train import Trainer, load_run, make_source

PRESET = "digits-mixture"


def demo(out: Path, console: Console) -> None:
    """Leaves in `out` the run, the episode and what was generated and recalled from its memory."""
    config, images, device = get_preset(PRESET), load_images("digits"), torch.device("cpu")
    run_dir = out / "run"
    console.print(f"training {PRESET} on 8 x 8 digits")
    Trainer(config, images, run_dir, device, resume=(run_dir / "last.safetensors").exists(), console=console).run()
    _, model = load_run(run_dir, images, device)
    assert isinstance(model, MemoryModel)
    episode = next(make_source(config.data, images, "test", 0, device).epoch(0))[:1]  # [1, T, 1, 8, 8]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        codes = model.head(model.embed(episode)).mean
        started = time.perf_counter()
        state, _ = model.memory.write(codes, generator=generator)
        milliseconds = 1e3 * (time.perf_counter() - started)
        generated = model.decode(model.memory.sample(state, 32, generator)[0]).mean
        recalled = model.decode(model.memory.reconstruct(state, codes)[0]).mean
    size = sum(t.numel() * t.element_size() for t in (state.row_mean, state.row_cov, state.loc_mean, state.loc_var))
    console.print(f"wrote {episode.shape[1]} digits into a memory of {size / 1024:.1f} kB in {milliseconds:.0f} ms")
    pictures = {"digits-episode.png": episode[0], "digits-recalled.png": recalled, "digits-generated.png": generated}
    for name, frames in pictures.items():
        save_picture(grid(frames, 16, scale=5), out / name)
    console.print("pictures: " + ", ".join(str(out / name) for name in pictures), soft_wrap=True)
