"""Sweeps over the surface of PyTorch, generated from `dir()`: what is added there is swept too."""
