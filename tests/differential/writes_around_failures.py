"""Writes on both sides of an operator that raises for what its tensors hold, beside eager.

    python -m tests.differential.writes_around_failures                     all operators
    python -m tests.differential.writes_around_failures --ops take,gather   these
    python -m tests.differential.writes_around_failures --shard 0/8

The operators, and the data for which they raise, are found: of each OpInfo's samples one tensor is
filled with a number of a few that mostly are wrong (99, -99, 0, 2, -1, nan). Where eager raises for
the numbers and not for the sample, the operator is put between two writes:

    x.add_(1); note(x); r = op(*arguments); x.mul_(3)        note: an operator with effects, or none

and called well and badly by turns. The first write is done once, the second is not, `note` is
called once, and the exception is eager's, whether somebody reads r or not.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

import braze
from braze.frozen import frozen
from tests.differential.failure_sweep import CALLS, note
from tests.differential.op_sweep import full_name, operators

_FILLS = {torch.int64: (99, -99, 0), torch.float32: (-1.0, 2.0, 0.0, math.nan)}
# A program takes a few; some kernels of eager's never end with such data.
_SECONDS = 90
# Eager itself ends the process there, or waits.
_LEFT_OUT = frozenset(("lu_unpack", "nn.functional.ctc_loss"))


@final
@frozen
class Case:
    """An operator, with the leaves of good arguments and of bad ones."""

    name: str
    call: Callable[[list[Any]], Any]
    good: list[Any]
    bad: list[Any]
    what: str


def cases_of(op: OpInfo, samples: int = 2) -> Iterator[Case]:
    """For each tensor of a sample, the first number that makes eager raise."""
    dtype = torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.int64
    if dtype not in op.supported_dtypes("cpu"):
        return
    random.seed(0)
    torch.manual_seed(0)
    given = op.sample_inputs("cpu", dtype, requires_grad=False)
    for sample in itertools.islice(given, samples):
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        call = functools.partial(_call, op.op, spec)
        if _ending(call, leaves):
            continue
        for place, leaf in enumerate(leaves):
            fills = _FILLS.get(leaf.dtype, ()) if isinstance(leaf, torch.Tensor) else ()
            for number in fills:
                bad = [*leaves[:place], torch.full_like(leaf, number), *leaves[place + 1 :]]
                if _ending(call, bad):
                    yield Case(full_name(op), call, leaves, bad, f"leaf {place} is {number}")
                    break


def difference(case: Case, acts: bool, reads: bool) -> str | None:
    """How the compiled program differs from eager, if it does."""

    def program(x: torch.Tensor, leaves: list[Any]) -> Any:
        x.add_(1)
        if acts:
            note(x)
        made = case.call(leaves)
        x.mul_(3)
        return made if reads else None

    eager = _outcomes(program, case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = _outcomes(braze.compile(program), case)
    if all(itertools.starmap(_agree, zip(eager, ours, strict=True))):
        return None
    told = f"{'acts, ' if acts else ''}{'read' if reads else 'unread'}"
    return f"{case.name} ({case.what}; {told})\n  eager {eager}\n  ours  {ours}"


def swept_operators() -> dict[str, OpInfo]:
    """The operators of the sweep by their full names."""
    return {name: op for name, op in operators().items() if name not in _LEFT_OUT}


# --- private ---------------------------------------------------------------------------------


def _call(op: Callable[..., Any], spec: Any, leaves: list[Any]) -> Any:
    args, kwargs = tree_unflatten(leaves, spec)
    return op(*args, **kwargs)


def _ending(call: Callable[[list[Any]], Any], leaves: list[Any]) -> list[str]:
    """The exception's classes that are Python's or torch's, if there is one, the first the best:
    one of Braze's own is of several."""
    try:
        call([leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
    except Exception as raised:
        kinds = type(raised).__mro__
        return [c.__name__ for c in kinds if not c.__module__.startswith("braze")]
    return []


def _agree(eager: tuple[list[str], Any, int], ours: tuple[list[str], Any, int]) -> bool:
    kinds = ours[0]
    return eager[1:] == ours[1:] and (eager[0][0] in kinds if eager[0] else not kinds)


def _outcomes(program: Callable[..., Any], case: Case) -> list[Any]:
    found = []
    CALLS.clear()
    for leaves in (case.good, case.bad, case.good, case.bad):
        x = torch.arange(3.0)
        ended = _ending(functools.partial(program, x), leaves)
        found.append((ended, x.tolist(), len(CALLS)))
    return found


def main() -> None:
    """Print what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ops", default="")
    parser.add_argument("--shard", default="0/1")
    arguments = parser.parse_args()
    shard, shards = map(int, arguments.shard.split("/"))
    names = arguments.ops.split(",") if arguments.ops else list(swept_operators())
    raising, programs, differ = 0, 0, 0
    for name in names[shard::shards]:
        count, texts = _swept_apart(name)
        raising += bool(count)
        programs += count
        differ += len(texts)
        for text in texts:
            print(text, flush=True)
    print(f"{raising} operators that raise for data, {programs} programs, {differ} differ")


def _swept_apart(name: str) -> tuple[int, list[str]]:
    """The programs of an operator, and how they differ, in a process of its own: a kernel of
    eager's may end it for such data."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_sweep_and_send, args=(name, sender))
    child.start()
    sender.close()
    count, texts = 0, []
    try:
        while True:
            if not receiver.poll(_SECONDS):
                child.kill()
            text = receiver.recv()
            count += 1
            texts += [text] if text else []
    except EOFError:
        child.join()
    if child.exitcode:
        texts.append(f"{name}: the process ended with {child.exitcode}")
    return count, texts


def _sweep_and_send(name: str, sender: Any) -> None:
    for case in cases_of(swept_operators()[name]):
        for acts, reads in itertools.product((False, True), (False, True)):
            sender.send(difference(case, acts, reads))


if __name__ == "__main__":
    main()
