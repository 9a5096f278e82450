"""What is measured: samples, joint assignments, recall, sizes of the memory, write time."""

import functools
import itertools
import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from vbmem.data.damage import blur, hide_right
from vbmem.memory.prefixes import PrefixNetworks
from vbmem.memory.written import WrittenMemory
from vbmem.models.settings import READS
from vbmem.paper.metrics.neighbours import Pictures, Rows, hit_rate, nearest
from vbmem.pretrained.model import Model
from vbmem.progress import track
from vbmem.tables import counted

STEPS = (1, 2, 12)  # of reading; samples are read the last number of times
TRUSTS = {"": 1.0, ", half trusted": 0.5}  # how recall reads, see `Model.read`
CLUSTERS, LENGTHS = (5, 10, 20, 50, 100, 150), (64, 640, 1280)
CELL_SAMPLES = 128  # at most so many pictures a cell: reading them is what takes long
REPEATS = 10  # of a timed action

Judge: TypeAlias = Callable[[Pictures, Tensor], Rows]  # of pictures, for an episode


@dataclass(frozen=True)
class Trial:
    """An episode in the memory of the model that is measured."""

    model: Model
    frames: Tensor  # the episode, [T, channels, H, W] in [0, 1]
    memory: WrittenMemory
    other: WrittenMemory  # of another episode
    judge: Judge
    generator: Generator  # shared by all trials
    painting: Model | None = None  # the model that is measured with its crisp decoder, if it has one


def samples(trial: Trial) -> Rows:
    """As many pictures as frames from an episode's memory, beside chance, the memory of another episode, and the best
    there can be, the frames encoded and decoded. Pixels are always means."""
    model, frames, memory, generator = trial.model, trial.frames, trial.memory, trial.generator
    drawn, steps = model.generate(memory, len(frames), reads=0, generator=generator), STEPS[-1]
    made = {
        "samples": drawn,
        f"{steps} reads, sampled": model.read(memory, drawn, steps, generator=generator)[-1],
        f"{steps} reads, means": model.read(memory, drawn, steps, sample=False)[-1],
        "chance": model.generate(trial.other, len(frames), reads=0, generator=generator),
        "ceiling": model.decode(model.encode(frames).mean),
    }
    return trial.judge(made, frames)


def crisp_samples(trial: Trial) -> Rows:
    """The same of crisp pictures, which are read through crisp pictures; there are none of a model that cannot paint.
    Draws are by themselves, and leave those of other metrics as they are without a painter."""
    model, frames, memory = trial.painting, trial.frames, trial.memory
    if model is None:
        return {}
    generator = Generator().manual_seed(trial.generator.initial_seed())
    made = {
        counted(reads, "reads"): model.generate(memory, len(frames), reads=reads, generator=generator)
        for reads in (0, READS, STEPS[-1])
    }
    return trial.judge(made | {"ceiling": model.decode(model.encode(frames).mean, generator=generator)}, frames)


def joint_samples(trial: Trial) -> Rows:
    """Samples of a tree, by how the joint assignment of its partitions is drawn; other memories have none."""
    model, frames, memory, generator = trial.model, trial.frames, trial.memory, trial.generator
    if model.memory.partitions == 1:
        return {}
    content = model.network.content(model.encode(frames).mean)
    n, theta = len(frames), memory.address(content).assignment  # [G, T, H]
    joints = {
        "prefix counts": memory.choice.sample(n, generator),
        "prefix networks": PrefixNetworks.fit(theta).sample(n, generator),
        "written frames": theta.argmax(-1)[:, torch.randint(n, (n,), generator=generator)],
        "independent": torch.multinomial(memory.usage, n, replacement=True, generator=generator),
    }
    draw = functools.partial(memory.empty.sample, memory.state, n, generator)
    codes = {way: model.complete(draw(clusters=clusters), generator=generator) for way, clusters in joints.items()}
    return trial.judge({way: model.decode(drawn) for way, drawn in codes.items()}, frames)


def recall(trial: Trial) -> dict[str, Rows]:
    """Squared error per pixel of damaged frames and of what is made of them, from the clean frame and from its
    reconstruction, the best these networks can do; and the hit rate. Read from the episode's memory and, where it can
    be resized, from one with a cluster for every frame. Only "nearest frame" has the frames to look at. Which pixels
    are missing is known to both."""
    model, frames, memories, generator = trial.model, trial.frames, [trial.memory], trial.generator
    if "clusters" in model.memory.sizes:
        memories.append(model.resize(clusters=len(frames)).write(frames, start="data", generator=generator))
    best = model.decode(model.encode(frames).mean)
    measures: dict[str, Rows] = {"error": {}, "error from reconstruction": {}, "hit rate": {}}
    for name, (damaged, known) in damage(frames, generator).items():
        reads = {
            f"H={m.empty.layout[0]}{how}": model.read(m, damaged, STEPS[-1], known=known, trust=trust, sample=False)
            for m, (how, trust) in itertools.product(memories, TRUSTS.items())
        }
        seen = slice(None) if known is None else known.expand(frames.shape[1:])
        made = {
            "damaged": damaged,
            "encoder-decoder": model.decode(model.encode(damaged).mean),
            **{f"{how}, {steps} reads": read[steps - 1] for how, read in reads.items() for steps in STEPS},
            "nearest frame": frames[nearest(damaged[:, seen], frames[:, seen])],
        }
        measures["error"][name] = {way: float(F.mse_loss(x, frames)) for way, x in made.items()}
        measures["error from reconstruction"][name] = {way: float(F.mse_loss(x, best)) for way, x in made.items()}
        measures["hit rate"][name] = {way: hit_rate(x, frames) for way, x in made.items()}
    return measures


def damage(frames: Tensor, generator: Generator) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Frames [T, channels, H, W] in [0, 1] as they are, with clipped noise, half hidden, and blurred.

    Returns:
        By name, the damaged frames and which pixels are known; None for all.
    """
    noise = torch.empty_like(frames).normal_(generator=generator)
    return {
        "none": (frames, None),
        **{f"noise {std}": ((frames + std * noise).clamp(0, 1), None) for std in (0.1, 0.2, 0.3, 0.5)},
        "right half grey": hide_right(frames),
        **{f"blur {sigma}": (blur(frames, sigma), None) for sigma in (1.0, 2.0)},
    }


def size_table(model: Model, judge: Judge, frames: Tensor, others: int, generator: Generator) -> list[dict[str, Any]]:
    """For every length T and number of clusters: the memory's own bound, nats a frame, with the best addresses for what
    was written, and precision (base rate T / (T + others)) and coverage of samples before and after reading."""
    cells, codes = [], model.encode(frames).mean
    for n, clusters in track([*itertools.product(LENGTHS, CLUSTERS)], "sizes"):
        sized, z = model.resize(clusters=clusters), codes[:n]
        memory = sized.write_codes(z, generator=generator)
        content = sized.network.content(z)
        bound = sized.memory.bound(content, memory.state, memory.address(content)).total / n
        drawn = sized.generate(memory, min(n, CELL_SAMPLES), reads=0, generator=generator)
        made = {"samples": drawn, "reads": sized.read(memory, drawn, STEPS[-1], sample=False)[-1]}
        cell = {"frames": n, "clusters": clusters, "pictures": len(drawn), "base rate": n / (n + others)}
        cells.append({**cell, "bound per frame": float(bound), **judge(made, frames[:n])})
    return cells


def write_time(model: Model, frames: Tensor, generator: Generator) -> dict[str, float]:
    """Median times in milliseconds, and the size of the memory."""
    codes = model.encode(frames).mean

    def median(action: Callable[[], object]) -> float:
        return 1e3 * statistics.median(timeit.repeat(action, number=1, repeat=REPEATS + 1)[1:])  # the first warms up

    return {
        "pictures": len(frames),
        "encoding ms": median(lambda: model.encode(frames)),
        "writing ms": median(lambda: model.write_codes(codes, generator=generator)),
        "memory bytes": model.write_codes(codes, generator=generator).nbytes,
    }


# In this order: they draw from one generator.
METRICS: dict[str, Callable[[Trial], Rows | dict[str, Rows]]] = {
    "samples": samples,
    "crisp samples": crisp_samples,
    "joint assignments": joint_samples,
    "recall": recall,
}
