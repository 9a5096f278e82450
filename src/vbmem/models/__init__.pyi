from .base import EpisodicModel, Evidence, FrameFormat
from .baseline import BaselineModel
from .directory import SavedModel, fingerprint, load_model, save_model
from .dkm import DKM
from .memory_model import MemoryModel
from .settings import CrispConfig, DKMConfig, MemoryConfig, ModelConfig, Regulariser, StatisticianConfig, VAEConfig
from .statistician import NeuralStatistician
from .vae import VAE

__all__ = [
    "DKM",
    "VAE",
    "BaselineModel",
    "CrispConfig",
    "DKMConfig",
    "EpisodicModel",
    "Evidence",
    "FrameFormat",
    "MemoryConfig",
    "MemoryModel",
    "ModelConfig",
    "NeuralStatistician",
    "Regulariser",
    "SavedModel",
    "StatisticianConfig",
    "VAEConfig",
    "fingerprint",
    "load_model",
    "save_model",
]
