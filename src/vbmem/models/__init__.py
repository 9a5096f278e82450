"""Episodic models: encoder and decoder with a prior, a context or a memory between them."""

from vbmem.models.base import EpisodicModel, Evidence, FrameFormat
from vbmem.models.dkm import DKM, DKMConfig
from vbmem.models.memory_model import MemoryConfig, MemoryModel, Regulariser
from vbmem.models.statistician import NeuralStatistician, StatisticianConfig
from vbmem.models.vae import VAE, VAEConfig

ModelConfig = VAEConfig | StatisticianConfig | DKMConfig | MemoryConfig

__all__ = [
    "DKM",
    "VAE",
    "DKMConfig",
    "EpisodicModel",
    "Evidence",
    "FrameFormat",
    "MemoryConfig",
    "MemoryModel",
    "ModelConfig",
    "NeuralStatistician",
    "Regulariser",
    "StatisticianConfig",
    "VAEConfig",
]
