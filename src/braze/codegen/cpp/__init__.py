"""C++ of kernels for the CPU: no headers, vector loops for the compiler to vectorise."""

from braze.codegen.cpp.operators import supports
from braze.codegen.cpp.product import convolution_unit, probe_unit
from braze.codegen.cpp.source import generate

__all__ = ["convolution_unit", "generate", "probe_unit", "supports"]
