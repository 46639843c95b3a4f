"""Source code of kernels, from a schedule."""
