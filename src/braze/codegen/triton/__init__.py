"""Triton functions of kernels, for one device, and how a graph launches them."""

from braze.codegen.triton.operators import supports
from braze.codegen.triton.source import generate

__all__ = ["generate", "supports"]
