"""Compare the table of opcodes with what `dis` says of the running Python; prints differences.

Run as a program it needs nothing but the standard library, under any version of the table.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from pathlib import Path

_SOURCE = Path(__file__).parents[3] / "src"


def _without_torch() -> None:
    for name in ("braze", "braze.compat"):
        package = types.ModuleType(name)
        package.__path__ = [str(_SOURCE.joinpath(*name.split(".")))]
        sys.modules[name] = package


if __name__ == "__main__":
    _without_torch()

from braze.compat.python.opcodes import OPCODES  # noqa: E402

# Arguments that say which effect `dis` has in mind, where not all are valid.
_ARGUMENTS = {"BUILD_SLICE": (2, 3), "RAISE_VARARGS": (0, 1, 2)}
_SEVERAL = (0, 1, 2, 3, 4, 5, 12, 255, 256 * 3 + 2)
# Where `dis` counts otherwise: PRECALL stands for the arguments of its CALL; what a generator is
# sent when it begins was not counted.
_NOT_COMPARED = {
    (3, 11): {"CALL", "PRECALL", "RETURN_GENERATOR"},
    (3, 12): {"RETURN_GENERATOR"},
}


def real_opcodes() -> set[str]:
    """The instructions that a code object of the running Python may hold."""
    numbers = {name: number for name, number in dis.opmap.items() if number < 256}
    return {name for name in numbers if not name.startswith(("INSTRUMENTED_", "<"))}


def differences() -> Iterator[str]:
    """One line for each difference."""
    real = real_opcodes()
    for name in sorted(real - set(OPCODES)):
        yield f"{name} has no row"
    for name in sorted(set(OPCODES) - real):
        yield f"{name} is no instruction of this version"
    for name in sorted(real & set(OPCODES) - _NOT_COMPARED.get(sys.version_info[:2], set())):
        yield from _of_effect(name)


def _of_effect(name: str) -> Iterator[str]:
    row, number = OPCODES[name], dis.opmap[name]
    has_argument = number >= dis.HAVE_ARGUMENT
    for arg in _ARGUMENTS.get(name, _SEVERAL) if has_argument else (0,):
        for jumps, effect in ((False, row.effect), (True, row.jump)):
            expected = dis.stack_effect(number, arg if has_argument else None, jump=jumps)
            found = effect.pushes(arg) - effect.pops(arg)
            if found != expected:
                yield f"{name} {arg}, jump={jumps}: {effect.text!r} is {found}, not {expected}"


if __name__ == "__main__":
    for line in differences():
        print(line)
    print(len(OPCODES), "opcodes of Python", sys.version.split()[0])
