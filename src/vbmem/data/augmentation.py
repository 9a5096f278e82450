"""Changes of pictures for training: more of them, and random ones of pictures [*, C, H, W] on the device.

The latter have static shapes and never wait for the host.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vbmem.data.image_set import Images, Labels
from vbmem.errors import DataError

# The largest changes of a random affine map; every one of them is drawn uniformly, up to this much either way.
ANGLE = math.radians(15)
SCALE = 0.15  # 0.85 to 1.15 times as large
SHEAR = 0.15
SHIFT = 2 / 28  # of the side

TURNS = 4


def with_rotations(images: Images, labels: Labels | None) -> tuple[Images, Labels | None]:
    """All pictures as they are, then all turned by 90, 180 and 270 degrees, and every turn of a label as a new label.

    Args:
        images: uint8 [N, S, S, C].
        labels: whole numbers [N], or none.

    Returns:
        Images [4 N, S, S, C] and labels [4 N].

    Raises:
        DataError: for pictures that are not square.
    """
    _, height, width, _ = images.shape
    if height != width:
        raise DataError(f"pictures of {height} x {width} cannot be turned; only square ones stay as large as they are")
    turned = np.concatenate([np.rot90(images, turn, axes=(1, 2)) for turn in range(TURNS)])
    if labels is not None:
        labels = np.concatenate([TURNS * labels.astype(np.int64) + turn for turn in range(TURNS)])
    return turned, labels


def mirrored(pictures: Tensor, which: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Each picture as it is or mirrored left-right, equally likely; one that is shown again, as before.

    Args:
        pictures: [.., C, H, W].
        which: the number of each picture, [..].
        count: of all pictures there are.
        generator: of the choice.
    """
    chosen = torch.empty(count, device=pictures.device).uniform_(generator=generator) < 0.5
    return torch.where(chosen[which][..., None, None, None], pictures.flip(-1), pictures)


def random_affine_maps(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Maps A [count, 2, 3] from places in a new picture to places in the old one, (x, y)_old = A (x, y, 1)_new:

    A = [R(angle) [[1, shear], [0, 1]] / scale, shift], where a picture reaches from -1 to 1 in x and y.
    """
    draws = 2 * torch.rand((5, count), generator=generator, device=device) - 1  # uniform on [-1, 1)
    angle, scale, shear = ANGLE * draws[0], 1 + SCALE * draws[1], SHEAR * draws[2]
    across, down = 2 * SHIFT * draws[3:]  # a side is 2 long
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    rows = (cosine, cosine * shear - sine, across, sine, sine * shear + cosine, down)
    return torch.stack(rows, -1).view(count, 2, 3)


def transformed(pictures: Tensor, maps: Tensor) -> Tensor:
    """Each picture of bytes under its affine map [N, 2, 3], edges repeated; whole numbers still, as float32."""
    flat = pictures.reshape(-1, *pictures.shape[-3:]).float()
    places = F.affine_grid(maps, list(flat.shape), align_corners=False)
    # Cubic, since linear interpolation makes thin lines fainter, and many are then lost to rounding.
    moved = F.grid_sample(flat, places, mode="bicubic", padding_mode="border", align_corners=False)
    return moved.clamp(0, 255).round().view(pictures.shape)


def affinely_changed(pictures: Tensor, generator: torch.Generator | None) -> Tensor:
    """Each picture of bytes rotated, scaled, sheared and shifted a little, as float32."""
    count = math.prod(pictures.shape[:-3])
    return transformed(pictures, random_affine_maps(count, generator, pictures.device))


def shifted_and_flipped(pictures: Tensor, generator: torch.Generator | None) -> Tensor:
    """Shift each picture by up to an eighth, edges repeated; mirror half of those in colour."""
    *batch, channels, height, width = pictures.shape
    device = pictures.device

    def shifted(size: int) -> Tensor:  # [*, size]: where each new row or column is taken from
        reach = size // 8
        shift = torch.randint(-reach, reach + 1, (*batch, 1), generator=generator, device=device)
        return (torch.arange(size, device=device) + shift).clamp(0, size - 1)

    rows, columns = shifted(height), shifted(width)
    if channels > 1:
        flip = torch.rand((*batch, 1), generator=generator, device=device) < 0.5
        columns = torch.where(flip, width - 1 - columns, columns)
    pictures = pictures.gather(-2, rows[..., None, :, None].expand(pictures.shape))
    return pictures.gather(-1, columns[..., None, None, :].expand(pictures.shape))


def relit(pictures: Tensor, generator: torch.Generator | None) -> Tensor:
    """Multiply each picture by a factor from [0.7, 1.3], cut off at white."""
    factor = torch.rand((*pictures.shape[:-3], 1, 1, 1), generator=generator, device=pictures.device)
    return (pictures * (0.7 + 0.6 * factor)).clamp(0, 1)
