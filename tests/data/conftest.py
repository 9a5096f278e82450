"""What several tests of the data package share."""

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """Every request fails as it does on a machine without a network."""
    import requests

    def refuse(*args, **kwargs):
        raise requests.exceptions.ConnectionError("no route to host")

    monkeypatch.setattr(requests, "get", refuse)
