"""Compiled programs as files: what a package holds, and what runs it without the compiler."""

from braze.packages.loaded import Method, Package
from braze.packages.loading import load_package

__all__ = ["Method", "Package", "load_package"]
