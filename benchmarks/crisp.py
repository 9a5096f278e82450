"""How crisp and how real are the pictures of a memory, painted in so many steps, and how long does that take?

    python benchmarks/crisp.py MODEL --data-dir DIRECTORY [--split valid] [--classifier FILE] [--out FILE.json]

The directory holds CIFAR-10. Every episode of 64 pictures is written, and as many are made of its memory; the
Frechet distance between all of these and all written ones is that of two Gaussians in the features of a
classifier, which is trained here, on the training pictures (a minute on a GPU), and judges nothing else. Two that were
trained alike still differ by some percent in what they say: to compare models, let `--classifier` keep it in a file.
Beside it the distance between two halves of the written pictures, of which half as many are twice as far apart by
chance; and sharpness: the mean absolute Laplacian. Choose the numbers of steps and reads on the validation pictures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_model, save_model
from scipy.linalg import sqrtm
from torch import Tensor, nn
from torch.nn import functional as F

import vbmem
from report import emit
from vbmem.data import load_images
from vbmem.data.image_set import ImageSet
from vbmem.progress import track

FRAMES = 64
STEPS = (1, 2, 4)  # in which painting is timed, and pictures are painted unless told otherwise
COUNTS = (1, 16, 64)  # pictures whose painting is timed
console = Console(width=110)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.skip(x))


class Classifier(nn.Module):
    """A small residual network; its features are what the last layer sees, [N, 4 width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 2 * width, 1),
            Block(2 * width, 4 * width, 2),
            Block(4 * width, 4 * width, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classes = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(2 * x - 1))


def as_frames(pictures: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    return torch.from_numpy(pictures).to(device).movedim(-1, 1).float() / 255


def kept_classifier(file: Path | None, images: ImageSet, width: int, epochs: int, device: torch.device) -> Classifier:
    """That of the file, if it is there; otherwise a new one, which is put into it."""
    torch.manual_seed(0)
    network = Classifier(width).to(device, memory_format=torch.channels_last)
    if file is not None and file.exists():
        load_model(network, file)
    else:
        train(network, images, epochs, device)
        if file is not None:
            save_model(network, file)
    return network.eval().requires_grad_(False)


def train(network: Classifier, images: ImageSet, epochs: int, device: torch.device) -> None:
    """On the training pictures, shifted and mirrored at random."""
    pictures, classes = images.split("train")
    assert classes is not None
    frames, labels = as_frames(pictures, device), torch.from_numpy(classes).long().to(device)
    batch, steps = 512, epochs * (len(frames) // 512)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.4, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.4, total_steps=steps, pct_start=0.25)
    padded = F.pad(frames, (4,) * 4, mode="reflect")
    for _ in track(range(epochs), "training a classifier"):
        for indices in torch.randperm(len(frames), device=device)[: len(frames) // batch * batch].split(batch):
            down, right = (int(n) for n in torch.randint(9, (2,)))
            part = padded[indices, :, down : down + 32, right : right + 32]
            part = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.5, part, part.flip(-1))
            with torch.autocast(device.type, torch.bfloat16):
                said = network(part.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(said.float(), labels[indices], label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()


def accuracy(network: Classifier, images: ImageSet, device: torch.device) -> float:
    """On the test pictures."""
    said = in_parts(network, as_frames(images.x_test, device)).argmax(-1)
    return float((said.cpu() == torch.from_numpy(images.y_test)).double().mean())


def frechet(one: Tensor, other: Tensor) -> float:
    """|m - m'|^2 + tr(S + S' - 2 (S S')^1/2) of the features [N, D] of two sets of pictures."""
    (m, s), (n, t) = ((x.mean(0), x.T.cov()) for x in (one.double().cpu(), other.double().cpu()))
    root = np.real(sqrtm((s @ t).numpy()))
    return float((m - n).square().sum() + s.trace() + t.trace() - 2 * np.trace(root))


def sharpness(pictures: Tensor) -> float:
    """Mean absolute Laplacian."""
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=pictures.device)
    flat = pictures.flatten(0, 1).unsqueeze(1)
    return float(F.conv2d(flat, kernel[None, None]).abs().mean())


def pictures_of(
    model: vbmem.Model, memories: list[vbmem.WrittenMemory], episodes: Tensor, reads: list[int], how: dict[str, Any]
) -> dict[str, Tensor]:
    """As many pictures as were written, [64 episodes, ..], of the memory of every episode [64, ..]: draws as they are,
    what `generate` makes of them, also with so many reads, and the written pictures read once."""
    made: dict[str, list[Tensor]] = {}
    for number, (memory, frames) in enumerate(zip(memories, track(episodes, "painting"), strict=True)):
        how = how | {"generator": seeded(frames, number)}
        for name, pictures in {
            "draws": model.generate(memory, FRAMES, reads=0, **how),
            "generated": model.generate(memory, FRAMES, **how),
            "recalled": model.read(memory, frames, 1, sample=False, every_step=False, **how),
            **{f"{n} reads": model.generate(memory, FRAMES, reads=n, **how) for n in reads},
        }.items():
            made.setdefault(name, []).append(pictures)
    return {name: torch.cat(pictures) for name, pictures in made.items()}


def seeded(like: Tensor, seed: int) -> torch.Generator:
    return torch.Generator(like.device).manual_seed(seed)


def in_parts(function: Callable[[Tensor], Tensor], of: Tensor, size: int = 500) -> Tensor:
    return torch.cat([function(part) for part in of.split(size)])


def seconds(model: vbmem.Model, codes: Tensor) -> dict[str, dict[int, float]]:
    """The shortest of three paintings of so many pictures."""
    found: dict[str, dict[int, float]] = {}
    for steps in (0, *STEPS):
        for count in COUNTS:
            times = []
            for _ in range(4):
                start = time.perf_counter()
                model.decode(codes[:count], crisp=steps > 0, paint_steps=max(steps, 1)).cpu()
                times.append(time.perf_counter() - start)
            found.setdefault(str(steps) if steps else "mean", {})[count] = round(min(times[1:]), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--split", choices=["valid", "test"], default="test")
    parser.add_argument("--clusters", type=int, nargs="+", default=[10, 64])
    parser.add_argument("--steps", type=int, nargs="*", default=list(STEPS), help="in which pictures are painted")
    parser.add_argument("--reads", type=int, nargs="*", default=[], help="of what is generated, also so many")
    parser.add_argument("--episodes", type=int, help="at most so many; by default all there are")
    parser.add_argument("--classifier", type=Path, help="a file that keeps the classifier for the next run")
    parser.add_argument("--width", type=int, default=64, help="of the classifier")
    parser.add_argument("--epochs", type=int, default=24, help="of the classifier, unless it is kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    device = torch.device(options.device)
    model = vbmem.load(options.model, device)
    images = load_images("cifar10", options.data_dir)
    judge = kept_classifier(options.classifier, images, options.width, options.epochs, device)
    pictures = as_frames(images.split(options.split)[0], device)
    pictures = pictures[torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0)).to(device)]
    episodes = pictures[: len(pictures) // FRAMES * FRAMES].unflatten(0, (-1, FRAMES))[: options.episodes]
    written = episodes.flatten(0, 1)

    def looked_at(x: Tensor) -> Tensor:
        return in_parts(judge.features, 2 * x - 1)

    known = looked_at(written)
    halves = known.tensor_split(2)
    report: dict[str, Any] = {
        "model": options.model,
        "split": options.split,
        "pictures": len(written),
        "classifier": {"accuracy": accuracy(judge, images, device), "width": options.width, "epochs": options.epochs},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads",
        "real": {"sharpness": sharpness(written), "frechet": frechet(*halves)},
        "clusters": {},
    }
    table = Table("H", "pictures", "painted", "sharpness", "of real", "Frechet")
    real = report["real"]["sharpness"]
    table.add_row("", "", "real", f"{real:.4f}", "", f"{report['real']['frechet']:.3f}")
    for clusters in options.clusters:
        rows: dict[str, dict[str, Any]] = {}
        sized = model.resize(clusters=clusters)
        start = "data" if clusters >= FRAMES else None  # a cluster for every picture, as in `vbmem metrics`
        memories = [
            sized.write(frames, start=start, generator=seeded(frames, number))
            for number, frames in enumerate(track(episodes, f"writing, H={clusters}"))
        ]
        for steps in (0, *options.steps):
            how = {"crisp": True, "paint_steps": steps} if steps else {"crisp": False}
            painted = f"{steps} steps" if steps else "mean"
            for name, made in pictures_of(sized, memories, episodes, options.reads, how).items():
                row = {"sharpness": sharpness(made), "frechet": frechet(looked_at(made), known)}
                rows.setdefault(name, {})[painted] = row
                share = f"{row['sharpness'] / real:.2f}"
                table.add_row(str(clusters), name, painted, f"{row['sharpness']:.4f}", share, f"{row['frechet']:.3f}")
        report["clusters"][clusters] = rows
    report["seconds"] = seconds(model, model.encode(written[: max(COUNTS)]).mean)
    console.print(table)
    emit(report, options.out)


if __name__ == "__main__":
    main()
