"""Methods, attributes and functions of torch that a program replaces between calls.

Each question of the tensors' surface is asked, then what it names is replaced by a function that
marks its results, and it is asked again, and once more when that is undone. Both what was compiled
before and what is compiled meanwhile has to follow.

    python -m tests.surface.patches --part 0/8 --only add
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

import braze
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from tests.recorded import recorded
from tests.surface.tensor_kinds import KINDS, Plain
from tests.surface.tensor_questions import namespace, questions
from tests.surface.tensors import Difference, Tally, deadline, part_of

BACKENDS = ("eager", "aot_eager")


class Patch(NamedTuple):
    """question: an expression of `x`. owner, name: what is replaced. kind: of the tensor."""

    question: str
    owner: Any
    name: str
    kind: str = "plain"


_OWNERS = {
    "x": torch.Tensor,
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
}
_NAMED = re.compile(r"^(x|torch|torch\.Tensor|torch\.nn\.functional)\.(\w+)(\(.*\))?$")
_OPERATIONS = {
    **{
        f"__{name}__": f"x {sign} 2"
        for name, sign in (
            ("add", "+"),
            ("sub", "-"),
            ("mul", "*"),
            ("truediv", "/"),
            ("floordiv", "//"),
            ("mod", "%"),
            ("pow", "**"),
            ("lt", "<"),
            ("ge", ">="),
            ("eq", "=="),
            ("ne", "!="),
        )
    },
    **{
        f"__r{name}__": f"2 {sign} x"
        for name, sign in (
            ("add", "+"),
            ("sub", "-"),
            ("mul", "*"),
            ("truediv", "/"),
            ("pow", "**"),
        )
    },
    "__matmul__": "x @ x.t()",
    "__neg__": "-x",
    "__abs__": "abs(x)",
    "__getitem__": "x[0]",
    "__len__": "len(x)",
    "__bool__": "bool(x.sum() > 0)",
    "__float__": "float(x.sum())",
    "__iter__": "[*x]",
    "__contains__": "2.0 in x",
    "__repr__": "repr(x)",
    "__format__": "f'{x}'",
}
# Replaced by what gives a pair, these change how the comparison itself sees a tensor, or Braze.
_LEFT_OUT = frozenset(
    "__hash__ __dict__ __doc__ __module__ __dir__ __torch_dispatch__ requires_grad is_leaf".split()
)


def patches() -> Iterator[Patch]:
    """Every method, attribute and function that a question names, replaced."""
    seen: set[tuple[int, str]] = set()
    for name, text in _OPERATIONS.items():
        yield Patch(text, torch.Tensor, name)
    for question in questions():
        found = _NAMED.match(question.text)
        if found is None:
            continue
        owner, name = _OWNERS[found[1]], found[2]
        if name not in _LEFT_OUT and (id(owner), question.text) not in seen:
            seen.add((id(owner), question.text))
            yield Patch(question.text, owner, name)


def patches_of_subclasses() -> Iterator[Patch]:
    """Of the same, what a subclass has that inherits `__torch_function__`."""
    for patch in patches():
        if patch.owner is torch.Tensor:
            yield Patch(patch.question, Plain, patch.name, "subclass")


# One of each way in which a name is found.
EACH_WAY = [
    *(Patch("x.acos()", torch.Tensor, "acos"), Patch("x + 2", torch.Tensor, "__add__")),
    *(Patch("2 - x", torch.Tensor, "__rsub__"), Patch("-x", torch.Tensor, "__neg__")),
    *(Patch("x[0]", torch.Tensor, "__getitem__"), Patch("x.shape", torch.Tensor, "shape")),
    *(Patch("x.dtype", torch.Tensor, "dtype"), Patch("x.T", torch.Tensor, "T")),
    *(Patch("x.norm()", torch.Tensor, "norm"), Patch("x.add_(1)", torch.Tensor, "add_")),
    *(Patch("torch.relu(x)", torch, "relu"), Patch("len(x)", torch.Tensor, "__len__")),
    *(
        Patch("torch.Tensor.mul(x, 2)", torch.Tensor, "mul"),
        Patch("[*x]", torch.Tensor, "__iter__"),
    ),
    Patch("torch.nn.functional.gelu(x)", torch.nn.functional, "gelu"),
    *(Patch("x + 2", Plain, "__add__", "subclass"), Patch("-x", Plain, "__neg__", "subclass")),
    *(Patch("len(x)", Plain, "__len__", "subclass"), Patch("x.T", Plain, "T", "subclass")),
    *(Patch("x.acos()", Plain, "acos", "subclass"), Patch("x.dtype", Plain, "dtype", "subclass")),
    Patch("x.is_contiguous()", Plain, "is_contiguous", "subclass"),
]


@contextmanager
def replaced(owner: Any, name: str) -> Iterator[None]:
    """An attribute whose function, or whose value, is marked."""
    missing = object()
    before = vars(owner).get(name, missing)
    old = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        return "replaced", old(*args, **kwargs)

    def read(self: Any) -> Any:
        return "replaced", old.__get__(self)

    is_read = not callable(old) and hasattr(old, "__get__")
    setattr(owner, name, property(read) if is_read else marked if callable(old) else "replaced")
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def sweep(asked: Iterable[Patch], tally: Tally | None = None) -> Tally:
    """Ask, replace, ask, undo and ask."""
    tally = tally or Tally()
    LOADER.wait()  # it tries its functions on tensors, whose methods are not replaced yet
    for patch in asked:
        for backend in BACKENDS:
            _ask_all(patch, backend, tally)
    return tally


def _ask_all(patch: Patch, backend: str, tally: Tally) -> None:
    expected = _answers(patch, lambda function: function)
    if expected is None:
        return
    braze.reset()
    with recorded() as journal, config.patch(dynamic=False):
        found = _answers(patch, functools.partial(braze.compile, backend=backend))
        tally.graphs += sum(record.outcome == "graph" for record in journal.records())
    assert found is not None
    for (when, want), (_, got) in zip(expected, found, strict=True):
        tally.asked += 1
        if want != got:
            tally.differences.append(Difference(patch.question, backend, when, want, got))
            return


def _answers(patch: Patch, compiler: Callable[..., Any]) -> list[tuple[str, str]] | None:
    """What comes of each call, by when it was; None where eager does not end."""
    made: list[tuple[str, Any]] = []
    before, meanwhile = (_asking(patch, compiler) for _ in range(2))
    with warnings.catch_warnings(), deadline(3):
        warnings.simplefilter("ignore")
        made += [("at first", _outcome(before)), ("at first", _outcome(before))]
        with replaced(patch.owner, patch.name):
            for _ in range(2):
                made.append(("replaced", _outcome(before)))
                made.append(("compiled meanwhile", _outcome(meanwhile)))
        made += [("undone", _outcome(before)), ("undone, compiled meanwhile", _outcome(meanwhile))]
    if any(isinstance(one, TimeoutError) for _, one in made):
        return None
    return [(when, _shown(one)) for when, one in made]


def _asking(patch: Patch, compiler: Callable[..., Any]) -> Callable[[], Any]:
    """The question put to another tensor each time."""
    function = compiler(_function_of(patch.question))
    return lambda: function(KINDS[patch.kind]())


def _function_of(text: str) -> Callable[[Any], Any]:
    source = f"def ask(x):\n    more = x.sin()\n    return ({text}), more\n"
    space = namespace()
    exec(compile(source, f"<{text}>", "exec"), space)
    ask: Callable[[Any], Any] = space["ask"]
    return ask


def _outcome(function: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    try:
        return function()[0]
    except Exception as error:
        return error


_ADDRESS = re.compile(r"0x[0-9a-f]+|-?\b\d{10,}\b")


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return f"{value.layout} {tuple(value.shape)}"
        name = type(value).__name__
        return f"{name} {value.dtype} {tuple(value.shape)} {value.tolist()}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(_shown, value))})"
    if isinstance(value, Exception):
        return type(value).__name__
    return _ADDRESS.sub("an address", f"{type(value).__name__} {value}")


def main() -> int:
    """Print the differences as they are found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1", help="which of how many parts: 0/8")
    parser.add_argument("--only", default="", help="a piece of the questions' text")
    parser.add_argument("--each-way", action="store_true", help="one of each way to find a name")
    options = parser.parse_args()
    tally = Tally()
    every = itertools.chain(patches(), patches_of_subclasses())
    for patch in part_of(EACH_WAY if options.each_way else every, options.part):
        if options.only in patch.question:
            before = len(tally.differences)
            sweep([patch], tally)
            for difference in tally.differences[before:]:
                print(str(difference)[:600], flush=True)
    print(f"{tally.asked} answers, {tally.graphs} graphs, {len(tally.differences)} differences")
    return bool(tally.differences)


if __name__ == "__main__":
    sys.exit(main())
