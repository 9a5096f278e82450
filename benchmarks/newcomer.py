"""From a clone to pictures and codes of one's own: a fresh clone, a fresh environment, one command a step, and seconds.

    python benchmarks/newcomer.py [--out FILE.json]

The times are of the machine and of its connection to the package index; on ours torch lies on the disk.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from report import emit

ROOT = Path(__file__).parents[1]
PORT = 7911
OWN = """
from pathlib import Path
from PIL import Image
from vbmem.data.examples import photograph_crops
Path("holiday").mkdir()
for number, crop in enumerate(photograph_crops("china", 64, 256)):
    Image.fromarray(crop).save(f"holiday/{number}.jpg")
import numpy as np
from sklearn.datasets import load_digits
codes = load_digits().data
np.save("known.npy", codes[:1000])
np.save("others.npy", codes[1000:])
"""


def seconds(command: list[str], where: Path) -> float:
    started = time.monotonic()
    subprocess.run(command, cwd=where, check=True, stdout=subprocess.DEVNULL)
    return round(time.monotonic() - started, 1)


def until_the_page_answers(vbmem: Path, where: Path) -> float:
    started = time.monotonic()
    server = subprocess.Popen([vbmem, "app", "--port", str(PORT)], cwd=where, stdout=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}"):
                    return round(time.monotonic() - started, 1)
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("vbmem app ended before it answered")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with TemporaryDirectory() as folder:
        clone = Path(folder) / "vbmem"
        steps = {"git clone": seconds(["git", "clone", "-q", str(ROOT), str(clone)], ROOT)}
        steps["make demo, with the set-up"] = seconds(["make", "demo"], clone)
        steps["make demo, again"] = seconds(["make", "demo"], clone)
        programs = clone / ".venv" / "bin"
        steps["vbmem app, until it answers"] = until_the_page_answers(programs / "vbmem", clone)
        subprocess.run([programs / "python", "-c", OWN], cwd=clone, check=True)
        for name, command in {
            "vbmem write, 64 pictures of 256 x 256": "write holiday -o holiday.memory",
            "vbmem generate, 64 pictures": "generate holiday.memory -n 64 -o new.png",
            "vbmem write, 1,000 codes of 64 numbers": "write known.npy --clusters 10 -o known.memory",
            "vbmem score, 797 others": "score known.memory others.npy --csv novelty.csv",
        }.items():
            steps[name] = seconds([str(programs / "vbmem"), *command.split()], clone)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=clone, capture_output=True, text=True)
    hardware = f"{platform.machine()}, {os.cpu_count()} cores"
    emit({"commit": commit.stdout.strip(), "hardware": hardware, "seconds": steps}, out)


if __name__ == "__main__":
    main()
