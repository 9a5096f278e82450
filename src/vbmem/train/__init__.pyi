from .evaluation import Evaluation, best_refinement, evaluate
from .loop import Trainer
from .painting import DecoderTrainer
from .runs import make_model, make_source, read_run
from .settings import DataConfig, PaintingConfig, RefiningConfig, RunConfig, Stage

__all__ = [
    "DataConfig",
    "DecoderTrainer",
    "Evaluation",
    "PaintingConfig",
    "RefiningConfig",
    "RunConfig",
    "Stage",
    "Trainer",
    "best_refinement",
    "evaluate",
    "make_model",
    "make_source",
    "read_run",
]
