"""The process that a package is for: versions, system, and the processor's vector units."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from braze.compat.torch.versions import PUBLIC_VERSION
from braze.errors import InvalidPackage
from braze.version import VERSION

# Of what a package's head and program say. Raise it with every change to what is written, and to
# what launch programs call by name.
FORMAT = 2

# Instruction sets that a compiler uses of its own accord, among the flags of /proc/cpuinfo.
_UNITS = re.compile(
    r"(pni|ssse3|sse\w*|avx\w*|fma\w*|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|adx|amx_\w+|gfni"
    r"|vaes|vpclmulqdq|sha_ni|asimd\w*|sve\w*|neon|fphp|bf16|i8mm)"
)


def process_facts() -> dict[str, Any]:
    """What a package says of the process that writes it."""
    return {
        "format": FORMAT,
        "braze": VERSION,
        "torch": PUBLIC_VERSION,
        "system": sys.platform,
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "units": sorted(vector_units()),
    }


def check_process(path: str, facts: Mapping[str, Any], has_kernels: bool) -> None:
    """Raise InvalidPackage where this process cannot run what that one wrote. has_kernels: whether
    the package has code for that processor."""
    if facts.get("format") != FORMAT:
        raise _other(path, "format", facts.get("format"), FORMAT)
    here = process_facts()
    for name in ("braze", "torch", "byteorder"):
        if facts.get(name) != here[name]:
            raise _other(path, name, facts.get(name), here[name])
    if not has_kernels:
        return
    for name in ("system", "machine"):
        if facts.get(name) != here[name]:
            raise _other(path, name, facts.get(name), here[name])
    lacking = sorted({*facts["units"]} - {*here["units"]})
    if lacking:
        raise InvalidPackage(
            f"{path} holds kernels for a processor with {', '.join(lacking)}, which this one does "
            "not have. Write the package on a machine of this kind."
        )


def python_abi() -> str:
    """What extension modules of this Python are named by."""
    return str(sysconfig.get_config_var("SOABI"))


def vector_units() -> set[str]:
    """The instruction sets of this processor; none where the system does not say."""
    try:
        with open("/proc/cpuinfo") as lines:
            line = next((each for each in lines if each.startswith(("flags", "Features"))), "")
    except OSError:
        return set()
    return {flag for flag in line.partition(":")[2].split() if _UNITS.fullmatch(flag)}


# --- private ---------------------------------------------------------------------------------

_WORDS = {
    "format": "the package format",
    "braze": "Braze",
    "torch": "PyTorch",
    "system": "the system",
    "machine": "a processor of the kind",
    "byteorder": "the byte order",
}


def _other(path: str, name: str, found: object, here: object) -> InvalidPackage:
    return InvalidPackage(
        f"{path} was written for {_WORDS[name]} {found}, and here is {here}. Write the package "
        "anew, with braze.package, in an environment like this one."
    )
