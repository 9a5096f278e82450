"""What an NVIDIA H200 can do, as its maker describes it, a second."""

BYTES = 4.8e12  # from its memory
FLOPS, HALF_FLOPS = 67e12, 989e12  # in float32, and in half precision on tensor cores
NETWORK_BYTES = 50e9  # to other machines: 400 Gbit/s a GPU
