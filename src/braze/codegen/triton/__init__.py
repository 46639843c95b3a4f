"""Triton functions of kernels, for one device, and how a graph launches them."""

from braze.codegen.segments import host_sources
from braze.codegen.triton.operators import supports
from braze.codegen.triton.source import alternatives, generate, kernel_alternatives, ways_to_run

__all__ = [
    "alternatives",
    "generate",
    "host_sources",
    "kernel_alternatives",
    "supports",
    "ways_to_run",
]
