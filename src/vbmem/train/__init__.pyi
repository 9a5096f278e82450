from .evaluation import Evaluation, best_refinement, evaluate
from .loop import Trainer
from .runs import make_model, make_source, read_run
from .settings import DataConfig, RunConfig, Stage

__all__ = [
    "DataConfig",
    "Evaluation",
    "RunConfig",
    "Stage",
    "Trainer",
    "best_refinement",
    "evaluate",
    "make_model",
    "make_source",
    "read_run",
]
