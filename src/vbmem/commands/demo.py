"""What there is to see without a picture of one's own: the web page and the demonstration."""

from contextlib import nullcontext
from pathlib import Path

from vbmem.commands import command
from vbmem.commands.given_pictures import SkipBroken, broken_pictures
from vbmem.commands.output import check_outputs, console


@command("See")
def app(
    model: str = "cifar10-mixture", data_dir: Path | None = None, host: str = "127.0.0.1", port: int = 7860
) -> None:
    """Play with a memory in the browser.

    Args:
        model: the model to start with: a name that `vbmem models` lists, a model directory, or a training run.
        data_dir: where CIFAR-10 (cifar10.npz) is kept, to draw episodes from its test pictures.
        host: the address to listen on; 0.0.0.0 lets other machines in.
        port: the port to listen on; choose another one if it is taken.
    """
    from vbmem.app import launch

    launch(model, data_dir, host, port)


@command("See")
def demo(
    out: Path = Path("demo"),
    images: Path | None = None,
    skip_broken: SkipBroken = False,
    open: bool = False,
    train: bool = False,
) -> None:
    """A page of pictures written, generated and recalled.

    Args:
        out: the directory for index.html, which holds everything and can be sent on, and for the memory it shows.
        images: a folder of your own pictures; otherwise crops of a photograph that scikit-learn carries.
        open: show the page in the browser.
        train: afterwards train a small model on digits from scratch, half a minute on a CPU.
    """
    from vbmem.demo import MEMORY, PAGE, demo, train_digits

    page, memory = out / PAGE, out / MEMORY
    check_outputs(page, memory)
    if page.exists() and not memory.exists():
        raise ValueError(f"{page} is no page of a demonstration, which has {MEMORY} beside it; choose another --out")
    with nullcontext() if images is None else broken_pictures(images, skip_broken) as broken:
        page = demo(out, console, images, broken)
    if open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    if train:
        train_digits(out, console)
