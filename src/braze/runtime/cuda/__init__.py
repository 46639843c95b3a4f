"""Kernels and memory on a CUDA device."""
