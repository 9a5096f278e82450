"""Where reduced precision ends."""

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """Lift bfloat16 and float16 to float32; leave float32 and float64 as they are.

    Networks may run under autocast; distributions and everything after them may not.
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
