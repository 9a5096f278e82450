from .evaluation import Evaluation, best_refinement, evaluate
from .loop import Trainer
from .painting import DecoderTrainer
from .runs import make_model, make_source, read_run
from .settings import DataConfig, PaintingConfig, RunConfig, Stage

__all__ = [
    "DataConfig",
    "DecoderTrainer",
    "Evaluation",
    "PaintingConfig",
    "RunConfig",
    "Stage",
    "Trainer",
    "best_refinement",
    "evaluate",
    "make_model",
    "make_source",
    "read_run",
]
