"""One thread a process: the tensors are tiny, and `pytest -n auto` already fills the cores."""

import torch

torch.set_num_threads(1)
