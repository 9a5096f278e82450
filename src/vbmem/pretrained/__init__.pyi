from .directory import load, load_network, shipped
from .model import Model

__all__ = ["Model", "load", "load_network", "shipped"]
