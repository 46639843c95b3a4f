"""How much of programs stays that were compiled and dropped.

    python -m tests.lifetimes [--count 300] [--program inference ...] [--reset]

For each kind of program: mappings and resident memory of this process, and Python's memory, before
and behind so many programs, each with kernels of its own. --reset: they are held, and
`braze.reset()` is called. Ends with 1 where more is left than LIMITS say.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import braze
from braze.runtime.guards.native_extension import LOADER
from tests.lifetimes.programs import MAKERS

_PAGE, _MEBI = 4096, 1 << 20
MOST_MAPPINGS = 20
MOST_GROWTH = 1.1


class Held(NamedTuple):
    """mappings: of files and memory. resident: MiB. traced: MiB of Python's objects."""

    mappings: int
    resident: float
    traced: float


def held_now() -> Held:
    """What this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    return Held(mappings, pages * _PAGE / _MEBI, tracemalloc.get_traced_memory()[0] / _MEBI)


def measure(name: str, count: int, *, resets: bool = False, first: int = 0) -> tuple[Held, Held]:
    """What is held before and behind so many programs of a kind; the collector does not run."""
    make = MAKERS[name]
    for number in range(3):
        make(-1.0 - (first + number) / 4096)
    LOADER.wait()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = held_now()
        programs = []
        for number in range(count):
            made = make(1.0 + (first + number) / 4096)
            if resets:
                programs.append(made)
        if resets:
            braze.reset()
        del made
        return before, held_now()
    finally:
        tracemalloc.stop()
        gc.enable()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--program", nargs="*", default=list(MAKERS))
    parser.add_argument("--reset", action="store_true")
    given = parser.parse_args()
    failed = False
    for name in given.program:
        before, after = measure(name, given.count, resets=given.reset)
        is_fine = after.mappings <= before.mappings + MOST_MAPPINGS
        is_fine &= after.resident <= before.resident * MOST_GROWTH
        failed |= not is_fine
        print(
            f"{'' if is_fine else 'TOO MUCH '}{name}: mappings {before.mappings} -> "
            f"{after.mappings}, resident {before.resident:.1f} -> {after.resident:.1f} MiB, "
            f"Python {after.traced - before.traced:+.2f} MiB",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
