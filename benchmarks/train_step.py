"""Milliseconds of a training step on the paper's models, and their ratios to the VAE with the same networks.

    python benchmarks/train_step.py [--out FILE.json] [--models NAME ..] [--episode-length T] [--kernels N]

All in one run, on random bytes in the shape of CIFAR-10. On CUDA the step is the one training uses: bfloat16 networks,
compiled, one CUDA graph; times come from CUDA events over many replays. Beside them stands what the convolutions and
batch norms of a step take at the least on an H200, by its maker's rates; with --kernels, how many kernels a step has,
how long they run in all, and the N that take longest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from h200 import BYTES, HALF_FLOPS
from report import emit
from vbmem.data import ImageSet
from vbmem.models import VAEConfig
from vbmem.models.base import EpisodicModel
from vbmem.models.settings import MemoryConfig
from vbmem.paper.presets import PRESETS
from vbmem.train import RunConfig, make_model, make_source
from vbmem.train.step import TrainingStep


def with_last_iterations(config: RunConfig, count: int) -> RunConfig:
    """The same run of a memory model, with gradients through the last iterations of a write alone."""
    assert isinstance(config.model, MemoryConfig)
    return replace(config, model=replace(config.model, gradient_iterations=count))


# name -> (configuration, the model its ratio is to)
MODELS: dict[str, tuple[RunConfig, str]] = {
    "vae": (PRESETS["cifar10-vae"], "vae"),
    "statistician": (PRESETS["cifar10-statistician"], "vae"),
    "dkm": (PRESETS["cifar10-dkm"], "vae"),
    "categorical": (PRESETS["cifar10-categorical"], "vae"),
    "gaussian": (PRESETS["cifar10-gaussian"], "vae"),
    "gaussian, last two": (with_last_iterations(PRESETS["cifar10-gaussian"], 2), "vae"),
    "vae-large": (
        replace(PRESETS["cifar10-mixture"], model=VAEConfig(filters=64, style="batch-swish-up-first")),
        "vae-large",
    ),
    "mixture": (PRESETS["cifar10-mixture"], "vae-large"),
    "tree": (PRESETS["cifar10-tree"], "vae-large"),
}


def measure(config: RunConfig, images: ImageSet, device: torch.device, repeats: int, kernels: int) -> dict[str, Any]:
    started = time.monotonic()
    model = make_model(config, images, device)
    at_least = least(model, config.data.batch_size * config.data.episode_length)
    if device.type == "cuda":
        model.compile_parts()
    source = make_source(config.data, images, "train", 0, device, training=True)
    step = TrainingStep(model, source, replace(config, averaging=0.0), learning_rate=1e-3)
    indices = source.epoch_indices(0)[0].to(device)
    for _ in range(6):
        step(indices)
    bound = step.means()["elbo_per_frame"]
    ready = time.monotonic() - started
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            step(indices)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            start_time = time.perf_counter()
            step(indices)
            times.append(1e3 * (time.perf_counter() - start_time))
    return {
        "ms": statistics.median(times),
        "ms_at_least": at_least,
        "ready_s": ready,
        "first_bound": bound,
        "skipped": float(step.skipped),
        **({"kernels": profile(lambda: step(indices), device, kernels)} if kernels else {}),
    }


def profile(step: Callable[[], None], device: torch.device, most: int) -> dict[str, Any]:
    """How many kernels a step has and how many milliseconds they take, and of those that take most: name, how often a
    step has it, milliseconds. On the CPU these are torch's operations."""
    cuda, steps = device.type == "cuda", 10
    activity = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(steps):
            step()
        if cuda:
            torch.cuda.synchronize()
    found = [
        (entry.key, entry.count / steps, (entry.self_device_time_total if cuda else entry.self_cpu_time_total) / steps)
        for entry in profiler.key_averages()
    ]
    found.sort(key=lambda one: -one[2])
    return {
        "count": sum(count for _, count, _ in found),
        "ms": sum(time for *_, time in found) / 1e3,
        "longest": [{"name": name, "count": count, "ms": time / 1e3} for name, count, time in found[:most]],
    }


@torch.no_grad()
def least(model: EpisodicModel, frames: int) -> dict[str, float]:
    """Milliseconds in which a step could move the features of its convolutional networks, and make their products.

    Half precision. A convolution moves what goes in and what comes out three times: forward, and for the gradients of
    features and weights. Batch norm, with what follows it, moves its features eight times: for statistics (1), forward
    (2), the sums of its gradient (2), and the gradient (3).
    """
    moved = products = 0.0

    def count(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal moved, products
        given, made = (x.numel() * frames / len(x) for x in (inputs[0], output))
        if isinstance(layer, nn.BatchNorm2d):
            moved += 8 * made
        else:
            moved += 3 * (given + made)
            products += 3 * layer.get_parameter("weight")[0].numel() * (made if isinstance(layer, nn.Conv2d) else given)

    kinds = nn.BatchNorm2d, nn.Conv2d, nn.ConvTranspose2d
    hooks = [layer.register_forward_hook(count) for layer in model.eval().modules() if isinstance(layer, kinds)]
    shape = model.frame.channels, model.frame.size, model.frame.size
    device = next(model.parameters()).device
    model.decode(torch.zeros(2, model.config.code_size, device=device))
    model.embed(torch.zeros(1, 2, *shape, device=device))
    for hook in hooks:
        hook.remove()
    return {"bandwidth": 1e3 * 2 * moved / BYTES, "half_precision": 1e3 * 2 * products / HALF_FLOPS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--episode-length", type=int, default=64)
    parser.add_argument("--kernels", type=int, default=0, help="how many to name; by default none is looked at")
    options = parser.parse_args()
    device = torch.device(options.device)
    console = Console()
    pixels = np.random.default_rng(0).integers(0, 256, (4096, 32, 32, 3), dtype=np.uint8)
    images = ImageSet("random", pixels)
    results: dict[str, Any] = {}
    for name in options.models:
        config, _ = MODELS[name]
        config = replace(config, data=replace(config.data, episode_length=options.episode_length))
        results[name] = measure(config, images, device, options.repeats, options.kernels)
        console.print(name, results[name])
    table = Table(title=f"one training step, B=16 T={options.episode_length}, {device}")
    for heading in ("model", "ms", "ratio", "to"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        peer = MODELS[name][1]
        if peer in results:
            result["ratio"], result["peer"] = result["ms"] / results[peer]["ms"], peer
            table.add_row(name, f"{result['ms']:.2f}", f"{result['ratio']:.2f}", peer)
    console.print(table)
    device_name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    report = {"torch": torch.__version__, "device": device_name, "models": results}
    emit(report, options.out)


if __name__ == "__main__":
    main()
