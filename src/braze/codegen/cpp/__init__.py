"""C++ of kernels for the CPU: no headers, vector loops for the compiler to vectorise."""

from braze.codegen.cpp.operators import supports
from braze.codegen.cpp.product import probe_unit
from braze.codegen.cpp.source import generate

__all__ = ["generate", "probe_unit", "supports"]
