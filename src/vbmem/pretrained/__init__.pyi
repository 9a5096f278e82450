from .directory import load, load_network, save_network, shipped
from .model import Model
from .written import WrittenMemory

__all__ = ["Model", "WrittenMemory", "load", "load_network", "save_network", "shipped"]
