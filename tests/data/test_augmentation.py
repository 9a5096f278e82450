"""Changes of pictures for training, one by one."""

import math

import numpy as np
import pytest
import torch

from tiny import CPU, noise, seeded
from vbmem.data import augmentation
from vbmem.data.augmentation import affinely_changed, mirrored, random_affine_maps, transformed, with_rotations
from vbmem.errors import DataError

IDENTITY = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def pictures(*batch, size=28, channels=1):
    """Bytes [*batch, channels, size, size]."""
    return torch.randint(0, 256, (*batch, channels, size, size), generator=seeded(), dtype=torch.uint8)


def test_a_rotation_of_a_class_is_the_class_turned_by_right_angles():
    images, labels = noise(6), np.array([3, 3, 9, 9, 0, 0], np.uint8)
    turned, new = with_rotations(images, labels)
    assert new is not None
    for turn in range(4):
        part = slice(6 * turn, 6 * turn + 6)
        assert np.array_equal(turned[part], np.rot90(images, turn, axes=(1, 2)))
        assert len(np.unique(new[part])) == 3
    assert len(np.unique(new)) == 12
    assert new[0] == new[1] != new[6]


def test_pictures_without_labels_can_be_turned_and_oblong_ones_cannot():
    turned, labels = with_rotations(noise(2), None)
    assert turned.shape == (8, 8, 8, 3)
    assert labels is None
    with pytest.raises(DataError, match="2 x 3 cannot be turned"):
        with_rotations(np.zeros((1, 2, 3, 1), np.uint8), None)


def test_half_of_the_pictures_are_mirrored_and_the_others_left_as_they_are():
    old = pictures(20, 50, size=4, channels=3)
    new = mirrored(old, torch.arange(1000).view(20, 50), 1000, seeded())
    same, flipped = ((new == other).flatten(2).all(-1) for other in (old, old.flip(-1)))
    assert new.dtype == torch.uint8
    assert (same ^ flipped).all()
    assert 0.45 < flipped.float().mean() < 0.55


def test_a_picture_that_is_shown_again_is_mirrored_again():
    old, which = pictures(6, size=4, channels=3), torch.randint(6, (5, 40), generator=seeded())
    new = mirrored(old[which], which, 6, seeded())
    assert all(len(new[which == number].unique(dim=0)) == 1 for number in range(6))


def test_the_identity_leaves_pictures_as_they_are():
    old = pictures(2, 3)
    assert torch.equal(transformed(old, IDENTITY.expand(6, 2, 3)), old.float())


def test_without_strength_there_is_no_change(monkeypatch):
    for name in ("ANGLE", "SCALE", "SHEAR", "SHIFT"):
        monkeypatch.setattr(augmentation, name, 0.0)
    old = pictures(3)
    assert torch.equal(affinely_changed(old, seeded()), old.float())


def test_a_map_says_where_a_new_pixel_comes_from():
    old = pictures(1, channels=3)
    a_pixel_from_the_right = IDENTITY + torch.tensor([[0.0, 0.0, 2 / 28], [0.0, 0.0, 0.0]])
    assert torch.equal(transformed(old, a_pixel_from_the_right[None])[..., :-1], old[..., 1:].float())
    a_right_angle = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
    assert torch.equal(transformed(old, a_right_angle[None]), torch.rot90(old, 1, (-2, -1)).float())


def test_edges_are_repeated():
    assert (affinely_changed(torch.full((50, 1, 28, 28), 200, dtype=torch.uint8), seeded()) == 200).all()


def test_affine_changes_are_as_large_as_they_may_be():
    maps = random_affine_maps(10_000, seeded(), CPU)
    linear, shift = maps[..., :2], maps[..., 2]
    scale = linear.det().rsqrt()
    angle = torch.atan2(linear[:, 1, 0], linear[:, 0, 0])
    shear = (linear.mT @ linear)[:, 0, 1] * scale.square()
    for found, largest in ((scale - 1, 0.15), (angle, math.radians(15)), (shear, 0.15), (shift * 28 / 2, 2)):
        assert -largest <= found.min() < -0.97 * largest
        assert 0.97 * largest < found.max() <= largest * (1 + 1e-5)
        assert abs(found.mean()) < 0.03 * largest
    assert torch.corrcoef(torch.stack([scale, angle, shear, *shift.T])).triu(1).abs().max() < 0.05


def test_every_picture_has_a_change_of_its_own_and_a_seed_repeats_it():
    old = pictures(1).expand(2, 3, 1, 28, 28)
    new = affinely_changed(old, seeded())
    assert new.shape == old.shape
    assert len(new.flatten(0, 1).unique(dim=0)) == 6
    assert torch.equal(new, affinely_changed(old, seeded()))
    assert not torch.equal(new, affinely_changed(old, seeded(1)))
    assert torch.equal(new, new.round().clamp(0, 255))
