"""The whole state that a call leaves, in comparable form: values, metadata, identity, aliasing.

check(make)     eager and compiled calls of the program that `make` makes leave the same state
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import braze
from tests.recorded import recorded

_SHOWN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Describer:
    """Numbers objects and storages in the order in which they are met."""

    def __init__(self) -> None:
        self.objects: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.kept: list[Any] = []

    def describe(self, value: Any) -> Any:
        """The value as nested tuples; an object that was met before as its number."""
        if isinstance(value, _SHOWN):
            return (type(value).__name__, value if value == value else "nan")
        if isinstance(value, (type, torch._ops.OpOverload)) or (
            callable(value) and not isinstance(value, nn.Module)
        ):
            return ("callable", getattr(value, "__name__", type(value).__name__))
        if id(value) in self.objects:
            return ("again", self.objects[id(value)])
        number = self.objects[id(value)] = len(self.objects)
        self.kept.append(value)
        return (number, type(value).__name__, *self._contents(value))

    def _contents(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, BaseException):
            return (str(value).split("\n", 1)[0],)
        if isinstance(value, dict):
            items = [(self.describe(k), self.describe(v)) for k, v in value.items()]
            return (tuple(items),)
        if isinstance(value, (list, tuple)):
            return tuple(self.describe(item) for item in value)
        if isinstance(value, (set, frozenset)):
            return tuple(sorted(map(repr, value)))
        if isinstance(value, RemovableHandle):  # numbered through the process
            return ()
        space = getattr(value, "__dict__", {})
        if isinstance(value, nn.Module):
            space = {n: list(v.values()) if "_hooks" in n else v for n, v in space.items()}
        return tuple((name, self.describe(item)) for name, item in space.items())

    def _tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            plain = tensor.detach()
            if type(plain) is not torch.Tensor:
                plain = plain.as_subclass(torch.Tensor)
            if plain.layout is not torch.strided:
                return (str(plain.layout), plain.to_dense().tolist())
            address = plain.untyped_storage().data_ptr() or id(tensor)
            storage = self.storages.setdefault(address, len(self.storages))
            values = plain.double() if plain.is_floating_point() else plain
            numbers = [
                round(v, 4) if isinstance(v, float) else v for v in values.flatten().tolist()
            ]
        return (
            plain.dtype,
            tuple(plain.shape),
            plain.stride() if plain.numel() > 1 else (),
            ("storage", storage),
            tensor.requires_grad,
            tensor.is_leaf,
            str([v if v == v else "nan" for v in numbers]),
            self.describe(tensor.grad) if tensor.is_leaf else None,
            self.describe(vars(tensor)) if getattr(tensor, "__dict__", None) else None,
        )


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call gives or raises."""
    torch.manual_seed(0)
    try:
        return function(*args)
    except Exception as error:
        return error


def state_after(
    function: Callable[..., Any], args: tuple[Any, ...], more: Any = None, calls: int = 2
) -> list[Any]:
    """The results of some calls and, after each, all that can be reached; then the gradients that
    the results carry to it."""
    describer = Describer()
    states: list[Any] = []
    results = []
    for _ in range(calls):
        results.append(outcome(function, args))
        states.append(Describer().describe([results[-1], list(args), more]))
    states.append(describer.describe([results, list(args), more]))
    needing = [r for r in _tensors(results) if r.requires_grad and r.is_floating_point()]
    if needing:
        try:
            total = sum((r * r).sum() for r in {id(r): r for r in needing}.values())
            total.backward()
        except RuntimeError as error:
            states.append(str(error).split("\n", 1)[0])
        states.append(Describer().describe([list(args), more]))
    return states


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def check(make: Callable[[], tuple[Any, ...]], **settings: Any) -> None:
    """Compare; `make` gives (function, arguments) or (function, arguments, what else to look at)
    anew at each call."""
    function, args, *more = make()
    expected = state_after(function, tuple(args), *more)
    function, args, *more = make()
    actual = state_after(braze.compile(function, **settings), tuple(args), *more)
    for place, (mine, other) in enumerate(zip(actual, expected)):
        assert mine == other, difference(mine, other, f"state {place}")
    assert len(actual) == len(expected)


def difference(mine: Any, other: Any, where: str) -> str:
    """The first place at which two states differ."""
    if isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
        for index, (a, b) in enumerate(zip(mine, other)):
            if a != b:
                return difference(a, b, f"{where}[{index}]")
    return f"{where}: compiled {mine!r}, eager {other!r}"


def break_codes(make: Callable[[], tuple[Any, ...]]) -> tuple[str, ...]:
    """The codes of the graph breaks of a first call, each once, in order."""
    function, args, *_ = make()
    explain = braze.explain(function)
    try:
        explanation = explain(*args)
    except Exception:
        return ("raises",)
    return tuple(dict.fromkeys(note.code for note in explanation.break_reasons))


def compiles(make: Callable[[], tuple[Any, ...]], calls: int = 2) -> list[tuple[int, list[str]]]:
    """For each of some calls: how many graphs with operators were compiled, and at which breaks."""
    function, args, *_ = make()
    with recorded() as journal:
        compiled = braze.compile(function, backend="aot_eager")
    found = []
    for _ in range(calls):
        journal.clear()
        outcome(compiled, tuple(args))
        records = journal.records()
        breaks = [record.graph_break.code for record in records if record.graph_break is not None]
        found.append((sum(r.outcome == "graph" and bool(r.ops) for r in records), breaks))
    return found
