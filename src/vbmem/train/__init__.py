"""Training and evaluation of episodic models."""

from vbmem.errors import CheckpointError, TrainingError
from vbmem.train.config import DataConfig, RunConfig, Stage
from vbmem.train.evaluate import Evaluation
from vbmem.train.loop import Trainer
from vbmem.train.runs import load_run, make_model, make_source, read_config

__all__ = [
    "CheckpointError",
    "DataConfig",
    "Evaluation",
    "RunConfig",
    "Stage",
    "Trainer",
    "TrainingError",
    "load_run",
    "make_model",
    "make_source",
    "read_config",
]
