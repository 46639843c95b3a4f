"""Measure Braze beside eager PyTorch and torch.compile, on models written by others."""
