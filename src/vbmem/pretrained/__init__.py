"""Trained models, ready to use: load, write, generate, read, score, save."""

from vbmem.errors import ModelError
from vbmem.memory.written import WrittenMemory
from vbmem.pretrained.directory import load, load_network, save_network, shipped
from vbmem.pretrained.model import Model

__all__ = ["Model", "ModelError", "WrittenMemory", "load", "load_network", "save_network", "shipped"]
