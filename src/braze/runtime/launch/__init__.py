"""Kernels and launch programs on the CPU: compiled, loaded, called."""
