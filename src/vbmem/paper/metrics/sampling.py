"""Precision and coverage of the pictures that a memory generates."""

from __future__ import annotations

import functools

import torch

from vbmem.memory.prefixes import PrefixNetworks
from vbmem.paper.metrics.trial import STEPS, Pictures, Rows, Trial


def judge_samples(trial: Trial) -> Rows:
    return trial.judge(samples(trial), trial.frames)


def judge_joint_samples(trial: Trial) -> Rows:
    """Only a tree has joint assignments."""
    return trial.judge(joint_samples(trial), trial.frames) if trial.model.memory.partitions > 1 else {}


def samples(trial: Trial) -> Pictures:
    """As many pictures as frames from an episode's memory, beside chance, the memory of another episode, and the best
    there can be, the frames encoded and decoded. Pixels are always means."""
    model, frames, memory, generator = trial.model, trial.frames, trial.memory, trial.generator
    drawn, steps = model.generate(memory, len(frames), generator=generator), STEPS[-1]
    chain = model.read(memory, drawn, steps, generator=generator)
    return {
        "samples": drawn,
        f"{steps} reads, sampled": chain[-1],
        f"{steps} reads, means": model.read(memory, drawn, steps, sample=False)[-1],
        "chance": model.generate(trial.other, len(frames), generator=generator),
        "ceiling": model.decode(model.encode(frames).mean),
    }


def joint_samples(trial: Trial) -> Pictures:
    """Samples of a tree, by how the joint assignment of its partitions is drawn."""
    model, frames, memory, generator = trial.model, trial.frames, trial.memory, trial.generator
    n, theta = len(frames), memory.address(model.encode(frames).mean).assignment  # [G, T, H]
    joints = {
        "prefix counts": memory.choice.sample(n, generator),
        "prefix networks": PrefixNetworks.fit(theta).sample(n, generator),
        "written frames": theta.argmax(-1)[:, torch.randint(n, (n,), generator=generator)],
        "independent": torch.randint(theta.shape[-1], (len(theta), n), generator=generator),
    }
    draw = functools.partial(memory.empty.sample, memory.state, n, generator)
    return {name: model.decode(draw(clusters=clusters)) for name, clusters in joints.items()}
