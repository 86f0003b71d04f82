"""The operators as Triton kernels, one file each: compiled on a GPU, run by Triton's interpreter on a CPU."""
