"""Codes on disk, written into one memory by the workers of Ray's TorchTrainer: each takes a part of them.

    pip install 'ray[train]'
    python examples/write_with_ray.py CODES -o FILE [--clusters 256] [--workers 2]

CODES is an .npy, .safetensors or .parquet file with a code in every row, or a directory of such files, and like FILE
lies where all workers see it. The memory is that which one process would write, to rounding, however many there are.
When a worker is lost, Ray starts all of them again, and they go on after the last iteration that was done.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from vbmem import MixtureMemory, WrittenMemory
from vbmem.data.code_files import open_codes
from vbmem.memory.shards import share
from vbmem.memory.unfinished import Reached, UnfinishedWrite

ROWS, ITERATIONS = 4, 10


def write(settings: dict[str, Any]) -> None:
    """What every worker does."""
    out, clusters, group = Path(settings["out"]), settings["clusters"], dist.group.WORLD
    codes = open_codes(Path(settings["codes"]))
    mine = codes.part(*share(codes.frames, group))
    about = {"clusters": clusters, "codes": codes.fingerprint()}
    unfinished = UnfinishedWrite(out.with_name(f"{out.name}.unfinished"), about)
    generator = torch.Generator().manual_seed(0)

    def fitted() -> MixtureMemory:
        memory = MixtureMemory(codes.code_size, ROWS, clusters)
        return memory.fit_prior(mine, noise="feature", iterations=ITERATIONS, generator=generator, group=group)

    memory, start, done = unfinished.load() or (fitted(), None, 0)

    def keep(steps: int, state: Any) -> None:
        if dist.get_rank(group) == 0 and done + steps < ITERATIONS:
            unfinished.save(Reached(memory, state, done + steps))

    written = WrittenMemory.write_stream(
        memory, mine, ITERATIONS - done, generator, start=start, group=group, follow=keep
    )
    if dist.get_rank(group) == 0:
        written.save(out)
        unfinished.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codes", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--clusters", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    settings = {"codes": str(options.codes.resolve()), "out": str(options.out.resolve()), "clusters": options.clusters}
    TorchTrainer(
        write,
        train_loop_config=settings,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=2)),
    ).fit()
    print(f"wrote {WrittenMemory.load(options.out).frames:,} codes into {options.out}")


if __name__ == "__main__":
    main()
