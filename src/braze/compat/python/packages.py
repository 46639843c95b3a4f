"""Which package a module is of, by its name."""

from __future__ import annotations


def is_of_package(module: object, *packages: str) -> bool:
    """Whether a module's name is that of a package, or of a module in it: `torchvision` is none of
    torch's."""
    return isinstance(module, str) and module.partition(".")[0] in packages
