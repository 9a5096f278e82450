"""What vbmem finds on this machine, and whether it works here."""

import os
import platform
import time
from importlib import metadata
from typing import Any

import vbmem
from vbmem.commands import command
from vbmem.commands.output import console, print_json

LIBRARIES = ("torch", "numpy", "scikit-learn", "safetensors", "pillow", "matplotlib", "triton")


@command("See")
def doctor(json: bool = False) -> None:
    """What is found on this machine, and a self-test.

    Args:
        json: print JSON instead of a table.
    """
    from rich.table import Table

    found = findings()
    if json:
        print_json(found)
    else:
        table = Table(show_header=False, box=None)
        for name, value in found.items():
            table.add_row(
                name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            )
        console.print(table)
    if found["self-test"] != "passed":
        raise ArithmeticError(f"the self-test failed: {found['self-test']}")


def findings() -> dict[str, Any]:
    """Everything `vbmem doctor` says."""
    import torch

    from vbmem.data.known import KNOWN_SETS
    from vbmem.data.loading import data_directory
    from vbmem.pretrained.directory import shipped

    directory = data_directory(None)
    sets = [name for name, known in KNOWN_SETS.items() if known.is_in(directory)]
    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    installed = {library.name: library.version for library in metadata.distributions()}
    started = time.perf_counter()
    outcome = self_test()
    return {
        "vbmem": vbmem.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "libraries": {name: installed[name] for name in LIBRARIES if name in installed},
        "devices": ", ".join([f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} threads)", *cuda]),
        "data directory": str(directory),
        "data sets there": ", ".join(sets) or "none yet; they are downloaded when first used",
        "models": ", ".join(shipped()),
        "self-test": outcome,
        "self-test took": f"{time.perf_counter() - started:.1f} s",
    }


def self_test() -> str:
    """Write codes and a picture: "passed", or what went wrong."""
    import torch

    try:
        codes, memory = torch.randn(64, 20, generator=torch.Generator().manual_seed(0)), vbmem.MixtureMemory(20, 3, 4)
        bounds = []
        for iterations in (1, 10):
            generator = torch.Generator().manual_seed(0)
            bounds.append(float(memory.bound(codes, *memory.write(codes, iterations, generator=generator)).total))
        if not bounds[0] < bounds[1]:
            return f"more iterations did not raise the bound ({bounds[0]:.2f}, then {bounds[1]:.2f})"
        model = vbmem.load("digits-mixture")
        picture = torch.rand(1, model.frame.channels, model.frame.size, model.frame.size)
        if not bool(model.generate(model.write(picture), 1).isfinite().all()):
            return "a generated picture holds NaN"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "passed"
