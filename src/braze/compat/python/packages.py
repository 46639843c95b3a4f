"""Which package a module is of, by its name."""

from __future__ import annotations

import sys
import sysconfig


def is_of_package(module: object, *packages: str) -> bool:
    """Whether a module's name is that of a package, or of a module in it: `torchvision` is none of
    torch's."""
    return isinstance(module, str) and module.partition(".")[0] in packages


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_installed(module: object) -> bool:
    """Whether a module, by its name, is of the standard library or of an installed package, and not
    part of a program."""
    found = sys.modules.get(module) if isinstance(module, str) else None
    spec = vars(found).get("__spec__") if found is not None else None
    if spec is None:
        return False
    return spec.origin in ("built-in", "frozen") or str(spec.origin).startswith(_LIBRARIES)
