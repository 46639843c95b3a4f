"""Random programs whose groups are split and joined at random: the same bytes each time.

    python -m tests.differential.forced_fusions --programs 200 --first 0 --choices 4

Under numerics="eager" what an operator gives does not depend on who shares its kernel. So each
program is compiled as it comes, then with other decisions of the scheduler: which definitions join
a group, although it may and is worth it, or is not; which stay apart; how many buffers a kernel
has; what is computed where it is read. Only costs are overruled, never a reason why definitions
cannot share a kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from braze.codegen.cpp import generate, supports
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.runtime.link.link_cpu import link
from braze.schedule import passes as plan
from braze.schedule import schedule
from braze.schedule.fusion import fuse
from braze.tracing import Tracer
from tests.differential.bytes_sweep import same_bytes
from tests.differential.fusion_programs import Program, make_program

_APART = "left apart by the test"


@contextlib.contextmanager
def other_choices(seed: int) -> Iterator[None]:
    """The scheduler decides by chance what it otherwise decides by cost."""
    choice = random.Random(seed)
    join, inline = fuse._joined, plan.inline
    refusals, skips = choice.choice((0.0, 0.2, 0.6, 1.0)), choice.choice((0.0, 0.5))

    def joined(*arguments: Any) -> str | None:
        return _APART if choice.random() < refusals else join(*arguments)

    def inlined(statements: Any, *rest: Any, **named: Any) -> Any:
        return statements if choice.random() < skips else inline(statements, *rest, **named)

    with contextlib.ExitStack() as stack:
        for module, name, other in (
            (fuse, "_joined", joined),
            (fuse, "_is_worth_joining", lambda *_: choice.random() < 0.7),
            (fuse, "_loses_parallelism", lambda *_: choice.random() < 0.3),
            (fuse, "_MOST_BUFFERS", choice.choice((4, 12, 40, 200))),
            (fuse, "_NEARBY", choice.choice((0, 2, 8, 40))),
            (plan, "inline", inlined),
        ):
            stack.enter_context(mock.patch.object(module, name, other))
        yield


def compiled(program: Program) -> tuple[Callable[[], list[torch.Tensor]], Schedule]:
    """The program's kernels under numerics="eager", as a call; and what they are."""
    with config.patch(numerics="eager"):
        options = config.snapshot()
    tracer = Tracer()
    with tracer:
        fakes = [tracer.add_input(x) for x in program.inputs]
        results = program(*fakes)
    finished = tracer.finish(results)
    kept = [tracer.inputs[place][1] for place in finished.inputs]
    made = schedule(lower(rewrite(finished.graph, options), options, supports), options)
    function: Any = link(made, generate(made, options), options)
    return lambda: function(kept)[: len(results)], made


def kernel_count(made: Schedule) -> int:
    """How many kernels of Braze's own there are."""
    return sum(isinstance(step, Kernel) for step in made.steps)


def difference(seed: int, choices: int) -> tuple[str, set[int]]:
    """What differs between the ways of one program, or nothing; and how many kernels they had."""
    program = make_program(seed)
    counts: set[int] = set()
    expected: list[torch.Tensor] | None = None
    for number in range(choices + 1):
        with contextlib.nullcontext() if number == 0 else other_choices(1000 * seed + number):
            run, made = compiled(program)
        counts.add(kernel_count(made))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = run()
        expected = results if expected is None else expected
        for place, (one, other) in enumerate(zip(expected, results, strict=True)):
            if one.stride() != other.stride() or not same_bytes(other, one):
                text = f"seed {seed}, choices {1000 * seed + number}: result {place} differs"
                return f"{text}\n{program}", counts
    return "", counts


def main(arguments: list[str]) -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--choices", type=int, default=4)
    options = parser.parse_args(arguments)
    wrong, several = 0, 0
    for seed in range(options.first, options.first + options.programs):
        found, counts = difference(seed, options.choices)
        several += len(counts) > 1
        if found:
            wrong += 1
            print(found, flush=True)
    print(f"# {options.programs} programs, {several} in several forms, {wrong} differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
