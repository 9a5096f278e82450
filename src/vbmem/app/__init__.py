"""The web page to play with a memory (`pip install vbmem[app]`, `vbmem app`)."""

from vbmem.app.serving import launch

__all__ = ["launch"]
