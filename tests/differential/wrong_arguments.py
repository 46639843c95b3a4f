"""The sweep of wrong arguments: what eager refuses, compiled code refuses with the same exception.

The arguments come from PyTorch's own operator database: the inputs that it lists as errors, and
its good ones with one thing changed, which nobody chose by hand:

    index    an element of a tensor of integers is far outside, on either side
    integer  an integer argument (dim, k, groups, stride, sizes) is 0, -1, far below, far above
    dtype    one tensor has another dtype
    rank     one tensor has a dimension more, or less
    overlap  an in-place or `out=` form writes to memory that its input overlaps in part
    expand   ... writes to elements that share memory

Each is called where the result is returned, and where nobody reads it. Where data alone is wrong,
calls with good data come before and after, through the same entry. An outcome is right when the
type of the exception is eager's, or the result is, and the arguments are left in eager's state.

    python -m tests.differential.wrong_arguments --ops gather,take --verbose
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import braze
from tests.differential.op_sweep import UNDEFINED_CONTENTS, full_name, operators

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
KINDS = ("listed", "index", "integer", "dtype", "rank", "overlap", "expand")
_FAR = 9  # beyond every size in the database's samples but a few
_OTHER_DTYPES = {
    torch.float32: (torch.float64, torch.int64, torch.bool, torch.float16),
    torch.int64: (torch.int32, torch.float32, torch.bool, torch.int16),
    torch.bool: (torch.int64, torch.float32, torch.uint8),
    torch.complex64: (torch.float32, torch.complex128),
}
# Their results are as long as an argument says, or they wait for other processes; eager's kernel of
# `lu_unpack` does not look at its sizes, and writes outside of its memory.
_LEFT_OUT = frozenset(
    "arange linspace logspace empty_permuted from_file nn.functional.ctc_loss lu_unpack "
    "torch.ops.aten._safe_softmax.default".split()
)


@final
@dataclass(slots=True)
class Case:
    """One call. good: the same with good data, where only the data differ."""

    kind: str
    what: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    good: tuple[tuple[Any, ...], dict[str, Any]] | None = None


@final
@dataclass(slots=True)
class Tally:
    """cases: calls that eager refused, and calls that it took, by kind. wrong: lines by kind."""

    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    taken: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.refused += other.refused
        self.taken += other.taken
        for kind, lines in other.wrong.items():
            self.wrong.setdefault(kind, []).extend(lines)

    @property
    def wrong_count(self) -> int:
        return sum(map(len, self.wrong.values()))


def sweep(op: OpInfo, kinds: tuple[str, ...], samples: int, every: int, tally: Tally) -> None:
    """All cases of an operator. every: of calls that eager takes, each so-manieth is compared."""
    count = 0
    for case in cases_of(op, kinds, samples):
        expected = _outcome(case.function, case.args, case.kwargs)
        if type(expected) is not _Raised:
            tally.taken[case.kind] += 1
            count += 1
            if not every or count % every or full_name(op) in UNDEFINED_CONTENTS:
                continue
            _judge(op, case, case.function, "", tally)
            continue
        tally.refused[case.kind] += 1
        _judge(op, case, case.function, "", tally)
        tally.refused[case.kind] += 1
        _judge(op, case, _unused(case.function), "unused ", tally)


def swept_operators() -> dict[str, OpInfo]:
    """The operators of the sweep by their full names."""
    return {name: op for name, op in operators().items() if name not in _LEFT_OUT}


def sweep_apart(name: str, kinds: tuple[str, ...], samples: int, every: int) -> Tally:
    """The sweep of an operator in a process of its own, which a wrong argument may end: eager's
    kernels do not check all of theirs."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_sweep_and_send, args=(name, kinds, samples, every, sender))
    child.start()
    sender.close()
    tally = Tally()
    try:
        while True:
            kind, refused, taken, wrong = receiver.recv()
            tally.add(Tally(refused, taken, {kind: wrong} if wrong else {}))
    except EOFError:
        child.join()
    if child.exitcode:
        tally.wrong.setdefault("listed", []).append(f"{name}: the process ended {child.exitcode}")
    return tally


def _sweep_and_send(
    name: str, kinds: tuple[str, ...], samples: int, every: int, sender: Any
) -> None:
    op = swept_operators()[name]
    for kind in kinds:
        tally = Tally()
        sweep(op, (kind,), samples, every, tally)
        sender.send((kind, tally.refused, tally.taken, tally.wrong.get(kind, [])))


def cases_of(op: OpInfo, kinds: tuple[str, ...], samples: int) -> Iterator[Case]:
    """Calls with wrong arguments, of which eager may take some."""
    if "listed" in kinds:
        yield from _listed(op)
    dtypes = [d for d in DTYPES if d in op.dtypes][:2]
    for dtype in dtypes:
        for sample in _samples(op, dtype, samples):
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            yield from (case for case in _mutated(op, args, kwargs) if case.kind in kinds)


# --- private ---------------------------------------------------------------------------------


@final
@dataclass(slots=True, frozen=True)
class _Raised:
    type: type[BaseException]
    text: str


def _samples(op: OpInfo, dtype: torch.dtype, limit: int) -> list[Any]:
    torch.manual_seed(0)
    random.seed(0)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
            tensors = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
            if any(isinstance(t, torch.Tensor) and not 0 < t.numel() < 5000 for t in tensors):
                continue
            found.append(sample)
            if len(found) > 40:
                break
    return found[:: max(1, len(found) // limit)][:limit]


def _listed(op: OpInfo) -> Iterator[Case]:
    if op.error_inputs_func is None:
        return
    for number, error in enumerate(op.error_inputs("cpu")):
        sample = error.sample_input
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        yield Case("listed", f"{number}", op.op, args, kwargs)


def _mutated(op: OpInfo, args: Any, kwargs: Any) -> Iterator[Case]:
    leaves, spec = tree_flatten((args, kwargs))
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                continue
            changed = _changed_tensors(leaf)
        elif type(leaf) is int:
            changed = [("integer", str(n), n) for n in (0, -1, -_FAR, leaf + _FAR) if n != leaf]
        else:
            continue
        for kind, what, other in changed:
            new_args, new_kwargs = tree_unflatten(
                [*leaves[:place], other, *leaves[place + 1 :]], spec
            )
            good = (args, kwargs) if kind == "index" else None
            yield Case(kind, f"leaf {place}: {what}", op.op, new_args, new_kwargs, good)
    yield from _overlapping(op, args, kwargs)


def _changed_tensors(leaf: torch.Tensor) -> Iterator[tuple[str, str, Any]]:
    if leaf.dtype in (torch.int64, torch.int32):
        for number in (_FAR + max(leaf.shape, default=0), -_FAR - max(leaf.shape, default=0), -1):
            other = leaf.clone()
            other.view(-1)[-1] = number
            yield "index", str(number), other
    for dtype in _OTHER_DTYPES.get(leaf.dtype, ()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield "dtype", str(dtype), leaf.to(dtype)
    yield "rank", "one more", leaf.unsqueeze(0)
    if leaf.dim():
        yield "rank", "one less", leaf[0]


def _overlapping(op: OpInfo, args: Any, kwargs: Any) -> Iterator[Case]:
    first = args[0]
    if not isinstance(first, torch.Tensor) or first.layout is not torch.strided:
        return
    inplace = op.inplace_variant
    others = [n for n, a in enumerate(args) if n and isinstance(a, torch.Tensor)]
    if inplace is not None:
        for place in others:
            if args[place].shape == first.shape and args[place].dtype is first.dtype:

                def shifted(memory: Any, *rest: Any, place: int = place, **named: Any) -> Any:
                    target, source = memory[:-1].view(first.shape), memory[1:].view(first.shape)
                    return inplace(target, *rest[: place - 1], source, *rest[place - 1 :], **named)

                memory = torch.cat([first.reshape(-1), args[place].reshape(-1)[-1:]])
                rest = (*args[1:place], *args[place + 1 :])
                yield Case("overlap", f"in place, {place}", shifted, (memory, *rest), kwargs)

        def expanded(small: Any, *rest: Any, **named: Any) -> Any:
            return inplace(small.expand(2, *small.shape), *rest, **named)

        yield Case("expand", "in place", expanded, args, kwargs)
    if not op.supports_out:
        return
    result = _outcome(op.op, args, kwargs)
    if not isinstance(result, torch.Tensor) or not result.numel():
        return

    def to_out(memory: Any, *rest: Any, **named: Any) -> Any:
        target = memory[1 : 1 + result.numel()].view(result.shape)
        source = memory[: first.numel()].view(first.shape)
        return op.op(source, *rest, out=target, **named)

    if result.dtype is first.dtype:
        padding = first.new_zeros(max(0, result.numel() - first.numel()) + 1)
        memory = torch.cat([first.reshape(-1), padding])
        yield Case("overlap", "out", to_out, (memory, *args[1:]), kwargs)

    def to_expanded(small: Any, *rest: Any, **named: Any) -> Any:
        return op.op(*rest, out=small.expand(result.shape), **named)

    yield Case("expand", "out", to_expanded, (result.new_zeros(()), *args), kwargs)

    def to_wrong(*rest: Any, **named: Any) -> Any:
        return op.op(*rest, out=torch.empty(result.shape, dtype=torch.bool), **named)

    yield Case("dtype", "out", to_wrong, args, kwargs)


def _unused(function: Callable[..., Any]) -> Callable[..., Any]:
    def calls(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        return torch.ones(3) * 2

    return calls


def _judge(op: OpInfo, case: Case, function: Callable[..., Any], prefix: str, tally: Tally) -> None:
    compiled = braze.compile(_named(function))
    rounds = [(case.args, case.kwargs)]
    if case.good is not None:
        rounds = [case.good, *rounds, case.good, *rounds]
    for args, kwargs in rounds:
        wrong = _difference(function, compiled, args, kwargs)
        if wrong:
            line = f"{full_name(op)}: {prefix}{case.kind} {case.what}: {wrong}"
            tally.wrong.setdefault(case.kind, []).append(line)
            break
    braze.reset()


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return program


def _difference(
    function: Callable[..., Any], compiled: Callable[..., Any], args: Any, kwargs: Any
) -> str:
    """How the compiled call differs from eager's; "" where it does not."""
    eager_state, braze_state = _copied((args, kwargs)), _copied((args, kwargs))
    want = _outcome(function, *eager_state, copies=False)
    got = _outcome(compiled, *braze_state, copies=False)
    if type(want) is _Raised or type(got) is _Raised:
        if type(want) is type(got) and want.type is got.type:
            got = want
        else:
            return f"eager {_shown(want)} | braze {_shown(got)}"
    try:
        for one, other in zip(
            tree_flatten((want, eager_state))[0], tree_flatten((got, braze_state))[0], strict=True
        ):
            if isinstance(one, torch.Tensor):
                assert one.dtype is other.dtype and one.shape == other.shape
                torch.testing.assert_close(other, one, equal_nan=True)
    except (AssertionError, ValueError, RuntimeError) as error:
        return f"values: {str(error).strip().splitlines()[:1]} {_shown(want)}"
    return ""


def _outcome(function: Callable[..., Any], args: Any, kwargs: Any, copies: bool = True) -> Any:
    if copies:
        args, kwargs = _copied((args, kwargs))
    torch.manual_seed(1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)
    except Exception as error:
        return _Raised(type(error), (str(error).strip().splitlines() or [""])[0])


def _copied(tree: Any) -> Any:
    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            return leaf.detach().clone()
        return leaf

    return tree_map(copy, tree)


def _shown(outcome: Any) -> str:
    if type(outcome) is _Raised:
        return f"{outcome.type.__name__}: {outcome.text[:110]}"
    if isinstance(outcome, torch.Tensor):
        return f"{outcome.dtype} {tuple(outcome.shape)}"
    return type(outcome).__name__


def summarise(tally: Tally) -> str:
    """A row for each kind."""
    lines = []
    for kind in KINDS:
        refused, taken, wrong = (
            tally.refused[kind],
            tally.taken[kind],
            len(tally.wrong.get(kind, ())),
        )
        lines.append(f"{kind}: {refused} refused by eager, {taken} taken, {wrong} wrong")
    refused, taken = sum(tally.refused.values()), sum(tally.taken.values())
    return "\n".join([*lines, f"all: {refused} refused, {taken} taken, {tally.wrong_count} wrong"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="comma-separated full names; all if empty")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--every", type=int, default=0, help="compare each n-th call eager takes")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator from the k-th")
    parser.add_argument("--verbose", action="store_true", help="show which operator is swept")
    options = parser.parse_args(arguments)
    names = options.ops.split(",") if options.ops else list(swept_operators())
    shard, shards = map(int, options.shard.split("/"))
    kinds = tuple(options.kinds.split(","))
    tally = Tally()
    for name in names[shard::shards]:
        if options.verbose:
            print(f"# {name}", flush=True)
        found = sweep_apart(name, kinds, options.samples, options.every)
        for line in [line for lines in found.wrong.values() for line in lines]:
            print(f"WRONG {line}", flush=True)
        tally.add(found)
    print(summarise(tally))
    return tally.wrong_count > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
