"""Quantized formats: what the bytes of a block mean. The products over them live in `kernels`."""
