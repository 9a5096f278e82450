"""The demonstration."""

from pathlib import Path

from vbmem.commands import command
from vbmem.commands.output import console


@command("See")
def demo(out: Path = Path("demo"), images: Path | None = None, train: bool = False) -> None:
    """A page of pictures written, generated and recalled.

    Args:
        out: the directory for index.html and its pictures.
        images: a folder of your own pictures; otherwise crops of a photograph that scikit-learn carries.
        train: afterwards train a small model on digits from scratch, half a minute on a CPU.
    """
    from vbmem.demo import demo, train_digits

    demo(out, console, images)
    if train:
        train_digits(out, console)
