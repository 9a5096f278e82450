"""The page under load: visitors who write, generate, recall, judge and upload pictures for some minutes.

    python benchmarks/soak.py [--visitors 50] [--minutes 10] [--pause 1] [--out FILE.json]

The server is a process of its own (`vbmem app`), the visitors are threads of this one. Latency is from sending an event
to having its answer; a visitor thinks before the next one. Memory is what the server holds (RSS), by the minute: it
grows until every thread and visitor has once held the most it ever does, and must then stay where it is.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from PIL import Image

from report import emit
from visitor import Answer, Visitor

EVERY = 2.0  # seconds between two looks at the server's memory
A_MINUTE = 30  # of these


class Soak:
    """What the visitors do, and what came of it."""

    def __init__(self, address: str, picture: Path, pause: float) -> None:
        self.address, self.picture, self.pause = address, picture, pause
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()

    def visit(self, number: int, until: float) -> None:
        """One visitor, from opening the page to the end; on average they think for `pause` seconds after an answer."""
        chance = random.Random(number)
        try:
            visitor = Visitor(self.address)
        except Exception as error:
            self.errors[f"open: {error!r}"] += 1
            return
        actions = {
            "draw": lambda: visitor.act("draw", "click", "a temple", chance.randint(16, 128)),
            "generate": lambda: visitor.act("generate", "click", "samples", chance.randint(8, 64), 4),
            "recall": lambda: visitor.act("noise", "input", chance.randint(1, 6), chance.random(), 0, 0),
            "resize": lambda: visitor.act("resize", "click", chance.randint(2, 24)),
            "judge": lambda: visitor.act("others", "upload", visitor.upload(self.picture)),
            "upload": lambda: visitor.act("files", "upload", visitor.upload(self.picture)),
        }
        frequent = {"draw": 2, "generate": 6, "recall": 6, "resize": 1, "judge": 2, "upload": 2}
        self._measure("open the page", visitor.open)
        while time.monotonic() < until:
            action = chance.choices(list(frequent), list(frequent.values()))[0]
            self._measure(action, actions[action])
            time.sleep(chance.expovariate(1 / self.pause) if self.pause else 0)
        visitor.close()

    def _measure(self, action: str, act: Any) -> None:
        started = time.monotonic()
        try:
            answer: Answer = act()
            if answer.said or not answer.succeeded:
                self.errors[f"{action}: {answer.said or answer.output.get('error')}"] += 1
        except Exception as error:
            self.errors[f"{action}: {error!r}"] += 1
        self.seconds[action].append(time.monotonic() - started)


def latency(seconds: list[float]) -> dict[str, float | int]:
    """How many, and their latency in seconds."""
    ordered = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else seconds * 19
    figures = {"median": median(seconds), "95 %": ordered[-1], "worst": max(seconds)}
    return {"count": len(seconds)} | {name: round(value, 3) for name, value in figures.items()}


def megabytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6


def watched(process: psutil.Process, over: threading.Event) -> list[float]:
    """The megabytes that a process holds, until it is over."""
    held = [megabytes(process)]
    while not over.wait(EVERY):
        held.append(megabytes(process))
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--pause", type=float, default=1, help="seconds that a visitor thinks, on average")
    parser.add_argument("--note", help="what else the machine was doing")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(picture := Path(folder) / "same.png")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        terminal = Path(folder) / "terminal.txt"
        with terminal.open("w") as log:
            command = [sys.executable, "-m", "vbmem", "app", "--port", str(port)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            if not server.stdout.readline().startswith("the page is at"):
                raise RuntimeError(f"the server did not start: {terminal.read_text()}")
            soak = Soak(f"http://127.0.0.1:{port}", picture, arguments.pause)
            over, process = threading.Event(), psutil.Process(server.pid)
            before = psutil.cpu_percent(1)
            started, worked = time.monotonic(), sum(process.cpu_times()[:2])
            with ThreadPoolExecutor(arguments.visitors + 1) as pool:
                watching = pool.submit(watched, process, over)
                until = started + 60 * arguments.minutes
                for visit in [pool.submit(soak.visit, number, until) for number in range(arguments.visitors)]:
                    visit.result()
                over.set()
            elapsed = time.monotonic() - started
            worked, threads = sum(process.cpu_times()[:2]) - worked, process.num_threads()
        finally:
            server.terminate()
            server.wait()
        printed = terminal.read_text()
    held = watching.result()
    everything = [value for values in soak.seconds.values() for value in values]
    emit(
        {
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {before:.0f} % busy before the soak",
            "note": arguments.note,
            "visitors": arguments.visitors,
            "minutes": round(elapsed / 60, 2),
            "pause": arguments.pause,
            "events a second": round(len(everything) / elapsed, 2),
            "cores the server used": round(worked / elapsed, 2),
            "errors": dict(soak.errors),
            "printed by the server": printed,
            "latency in seconds": latency(everything),
            "by action": {action: latency(values) for action, values in sorted(soak.seconds.items())},
            "memory in MB": {
                "before": round(held[0]),
                "by minute": [round(fmean(held[at : at + A_MINUTE])) for at in range(1, len(held), A_MINUTE)],
                "most": round(max(held)),
                "last": round(held[-1]),
            },
            "threads of the server": threads,
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
