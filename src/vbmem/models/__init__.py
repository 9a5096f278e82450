"""Episodic models: encoder and decoder with a prior, a context or a memory between them."""

from vbmem.lazy import attach_stub

# What the stub beside this file lists is imported when it is first used: settings alone need no torch.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
