"""Trained models, ready to use: load, write, generate, read, score, save."""

import lazy_loader as lazy

# What the stub beside this file lists is imported when it is first used.
__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
