from .baseline import Baseline
from .directory import load, load_any, load_baseline, load_network, shipped
from .model import Model

__all__ = ["Baseline", "Model", "load", "load_any", "load_baseline", "load_network", "shipped"]
