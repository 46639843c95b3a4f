"""Calls compiled ahead of time: `braze.package`, `aot_compile`, and what writes their files."""

from braze.packaging.ahead import AotCompiledFunction, aot_compile
from braze.packaging.package import package

__all__ = ["AotCompiledFunction", "aot_compile", "package"]
