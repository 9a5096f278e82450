"""What tests of the GPU's kernels have in common. Without a GPU they run in Triton's interpreter, if asked to."""

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from memory.zoo import normal, variances

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ["gaussian", "categorical", "shifted", "mixture", "mixture-factorised", "tree"]

needs_kernels = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="no GPU, and Triton is not interpreted")


def noisy_and_weighted(problem, noise):
    """The problem with a noise of this kind, and weights of its frames, some of them 0."""
    shape = problem.memory.noise_shape(noise)
    memory = problem.memory.with_scales(noise_var=variances(*shape, seed=9) if shape else torch.tensor(0.6))
    mask = variances(*problem.codes.shape[:-1]) * (normal(*problem.codes.shape[:-1]) > -1)
    return replace(problem, memory=memory), mask
