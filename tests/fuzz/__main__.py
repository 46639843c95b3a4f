from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.generator import generate
from tests.fuzz.isolation import Checker, check_seeds
from tests.fuzz.program import HEADER, Program
from tests.fuzz.runner import Difference
from tests.fuzz.shrink import Fails, shrink


def like(difference: Difference, checker: Checker) -> Fails:
    """Whether a program fails in the same way."""

    def fails(program: Program) -> bool:
        found = checker(program)
        key = (difference.kind, difference.cause)
        return found is not None and (found.kind, found.cause) == key

    return fails


def show(program: Program, difference: Difference, seconds: float) -> None:
    if seconds:
        checker = Checker()
        program = shrink(program, like(difference, checker), seconds)
        difference = checker(program) or difference
        checker.close()
    text = program.render().replace(HEADER, "")
    print(text)
    print(str(difference)[-2500:], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--shrink", type=float, default=0)
    parser.add_argument("--each", type=int, default=1)
    args = parser.parse_args()
    if args.seed is not None:
        program = generate(args.seed)
        difference = Checker()(program)
        if difference is None:
            print(program.render(), "no difference", sep="\n")
        else:
            show(program, difference, args.shrink)
        return difference is not None
    start = time.monotonic()
    found: Counter[tuple[str, str]] = Counter()
    spent = 0.0
    for seed, difference in check_seeds(range(args.first, args.first + args.programs)):
        if difference is None:
            continue
        found[difference.kind, difference.cause] += 1
        print("#####", seed, str(difference)[:400], flush=True)
        if args.shrink and found[difference.kind, difference.cause] <= args.each:
            before = time.monotonic()
            show(generate(seed), difference, args.shrink)
            spent += time.monotonic() - before
    for (kind, cause), count in found.most_common():
        print(f"{count:5} {kind}: {cause}")
    print(
        f"{args.programs} programs, {args.programs / (time.monotonic() - start - spent):.1f} a second"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
