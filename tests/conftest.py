"""One thread a process: the tensors are tiny, and `pytest -n auto` already fills the cores."""

import os

import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
