"""vbmem: fast-adapting generative memory, after "Meta-Learning with Variational Bayes" (Lingle 2021)."""

from vbmem.lazy import attach_stub

__version__ = "0.4.0"

# What the stub beside this file lists is imported when it is first used: `vbmem --help` needs no torch.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
