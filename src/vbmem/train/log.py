"""What a run tells: a JSON line an event in log.jsonl, TensorBoard where it is installed, a live line on the screen."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vbmem.files import as_json, write_atomically


class RunLog:
    """Appends events to log.jsonl; on resuming, drops those the checkpoint does not know of."""

    def __init__(self, run_dir: Path, epochs_known: int) -> None:
        self.path = run_dir / "log.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        kept = [line for line in lines if _epoch_of(line) <= epochs_known] if epochs_known else []
        write_atomically(self.path, "".join(f"{line}\n" for line in kept).encode())
        self._board = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run_dir / "tensorboard"))

    def event(self, kind: str, epoch: int, **values: Any) -> None:
        line = json.dumps(as_json({"event": kind, "epoch": epoch, **values}), allow_nan=False)
        try:
            with self.path.open("a") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror or error}") from error
        if self._board is not None:
            for part, numbers in values.items():
                if isinstance(numbers, dict):
                    for name, value in numbers.items():
                        self._board.add_scalar(f"{name}/{part}", value, epoch)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _epoch_of(line: str) -> float:
    """The epoch of a line of the log; never, if a crash cut it short."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Display(Progress):
    """The live line: epoch, step, bound, frames a second, time left."""

    def __init__(self, console: Console, batches: int) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._line = self.add_task("starting", total=batches, note="")

    def show(self, title: str, done: int, note: str) -> None:
        self.update(self._line, description=title, completed=done, note=note)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
