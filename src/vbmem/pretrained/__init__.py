"""Trained models, ready to use: load, write, generate, read, score, save."""

from vbmem.lazy import attach_stub

# What the stub beside this file lists is imported when it is first used.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
