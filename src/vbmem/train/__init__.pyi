from .evaluate import Evaluation
from .loop import Trainer
from .runs import load_run, make_model, make_source, read_config
from .settings import DataConfig, RunConfig, Stage

__all__ = [
    "DataConfig",
    "Evaluation",
    "RunConfig",
    "Stage",
    "Trainer",
    "load_run",
    "make_model",
    "make_source",
    "read_config",
]
