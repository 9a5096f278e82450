"""Triton kernels. Imported only where there is a CUDA device."""
