"""What several tests of the data package share."""

import numpy as np
import pytest


@pytest.fixture
def random_images():
    """uint8 pictures [count, height, width, channels] of noise."""

    def make(count, size=8, channels=3, seed=0):
        return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), np.uint8)

    return make


@pytest.fixture
def no_network(monkeypatch):
    """Every request fails as it does on a machine without a network."""
    import requests

    def refuse(*args, **kwargs):
        raise requests.exceptions.ConnectionError("no route to host")

    monkeypatch.setattr(requests, "get", refuse)
