"""Compiled programs as files: what a package holds, and what runs it without the compiler."""

from braze.packages.loaded import Method, Package
from braze.packages.loading import load_package
from braze.packages.saved_function import SavedFunction, load_compiled_function

__all__ = ["Method", "Package", "SavedFunction", "load_compiled_function", "load_package"]
