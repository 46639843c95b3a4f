"""Functions of torch that take sequences, given instances of subclasses of builtin containers.

C code of torch's looks past some methods of a subclass and calls others, and which is nowhere
written: `torch.stack` takes the items of a list whatever its `__iter__` says, `torch.tensor` asks
`__len__` and `__getitem__`. So every function is called with every subclass, eagerly and compiled.

python -m tests.surface.sequence_arguments [--only name] [--every n]
"""

from __future__ import annotations

import argparse
import collections
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

import braze

BASES: tuple[type, ...] = (
    list,
    tuple,
    collections.deque,
    collections.UserList,
    set,
    frozenset,
    dict,
    collections.OrderedDict,
    collections.UserDict,
    object,
)
ALL = slice(None)
# By name: a body for a subclass. Some give other items than the container holds.
METHODS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "__iter__": {"__iter__": lambda self: iter([*_held(self)][::-1])},
    "__len__": {"__len__": lambda self: max(0, len(_held(self)) - 1)},
    "__getitem__": {"__getitem__": lambda self, key: _held(self)[::-1][key]},
    "all": {
        "__iter__": lambda self: iter([*_held(self)][:1]),
        "__len__": lambda self: 1,
        "__getitem__": lambda self, key: [*_held(self)][:1][key],
    },
    "__index__": {"__index__": lambda self: 1},
    "__float__": {"__float__": lambda self: 1.5},
    "__bool__": {"__bool__": lambda self: False},
    "__getattr__": {"__getattr__": lambda self, name: _array_interface(self, name)},
}


def _held(value: Any) -> list[Any]:
    """The items that a container really holds."""
    for base in BASES[:-1]:
        if isinstance(value, base):
            if issubclass(base, collections.UserList):
                return list(value.data)
            if issubclass(base, collections.UserDict):
                return list(value.data.values())
            return list(dict.values(value) if issubclass(base, dict) else base.__iter__(value))
    return list(vars(value).get("items", ()))


def _array_interface(value: Any, name: str) -> Any:
    if name == "__array_interface__":
        raise RuntimeError("asked for its array")
    raise AttributeError(name)


def subclasses() -> Iterator[tuple[str, Callable[[list[Any]], Any]]]:
    """By name: what makes an instance that holds the given items."""
    for base in BASES:
        for name, body in METHODS.items():
            cls = type(f"{base.__name__}_{name}", (base,), dict(body))
            yield f"{base.__name__} with {name}", functools.partial(_make, base, cls)


def _make(base: type, cls: type, items: list[Any]) -> Any:
    if base is object:
        made = cls()
        vars(made)["items"] = items
        return made
    if issubclass(base, (dict, collections.UserDict)):
        return cls(enumerate(items))
    return cls(items)


def _x() -> torch.Tensor:
    return torch.arange(24.0).reshape(2, 3, 4)


def _tensors() -> list[Any]:
    return [torch.ones(2, 3), torch.full((2, 3), 2.0)]


# By name: the function of a sequence, and the items of one.
FIXED: dict[str, tuple[Callable[[Any], Any], Callable[[], list[Any]]]] = {
    "tensor": (lambda v: torch.tensor(v), lambda: [1, 2]),
    "tensor of tensors": (lambda v: torch.tensor(v), lambda: [torch.tensor(1.0), torch.tensor(2)]),
    "tensor, nested": (lambda v: torch.tensor([v, v]), lambda: [1, 2]),
    "tensor of lists": (lambda v: torch.tensor(v), lambda: [[1, 2], [3, 4]]),
    "as_tensor": (lambda v: torch.as_tensor(v), lambda: [1.5, 2.5]),
    "asarray": (lambda v: torch.asarray(v), lambda: [1.5, 2.5]),
    "new_tensor": (lambda v: _x().new_tensor(v), lambda: [1, 2]),
    "Tensor": (lambda v: _made(torch.Tensor(v)), lambda: [1.0, 2.0]),
    "LongTensor": (lambda v: _made(torch.LongTensor(v)), lambda: [1, 2]),
    "new": (lambda v: _made(_x().new(v)), lambda: [1.0, 2.0]),
    "Size": (lambda v: torch.Size(v), lambda: [1, 2]),
    "zeros": (lambda v: torch.zeros(v), lambda: [2, 3]),
    "full": (lambda v: torch.full(v, 7), lambda: [2, 3]),
    "new_zeros": (lambda v: _x().new_zeros(v), lambda: [2, 3]),
    "view": (lambda v: _x().view(v), lambda: [6, 4]),
    "reshape": (lambda v: _x().reshape(v), lambda: [6, 4]),
    "permute": (lambda v: _x().permute(v), lambda: [2, 0, 1]),
    "expand": (lambda v: torch.ones(1, 1).expand(v), lambda: [2, 3]),
    "sum": (lambda v: _x().sum(v), lambda: [0, 2]),
    "getitem": (lambda v: _x()[v], lambda: [1, 0]),
    "getitem, nested": (lambda v: _x()[:, v], lambda: [1, 0]),
    "getitem of masks": (lambda v: _x()[v], lambda: [True, False]),
    "getitem of tensors": (lambda v: _x()[v], lambda: [torch.tensor([0]), torch.tensor([1])]),
    "setitem": (lambda v: _store(v, 5.0), lambda: [1, 0]),
    "setitem of values": (lambda v: _store(0, v), lambda: [1.0, 2.0, 3.0, 4.0]),
    "stack": (lambda v: torch.stack(v), _tensors),
    "cat": (lambda v: torch.cat(v), _tensors),
    "hstack": (lambda v: torch.hstack(v), _tensors),
    "ops.cat": (lambda v: torch.ops.aten.cat(v), _tensors),
    "ops.cat.default": (lambda v: torch.ops.aten.cat.default(v), _tensors),
    "ops.sum": (lambda v: torch.ops.aten.sum.dim_IntList(_x(), v), lambda: [0, 2]),
    "meshgrid": (lambda v: torch.meshgrid(v, indexing="ij"), lambda: [torch.ones(2)] * 2),
    "broadcast_tensors": (lambda v: torch.broadcast_tensors(*v), _tensors),
    "block_diag": (lambda v: torch.block_diag(*v), _tensors),
    "foreach": (lambda v: torch._foreach_add(v, 1), _tensors),
    "split": (lambda v: _x().split(v, 2), lambda: [3, 1]),
    "roll": (lambda v: _x().roll(v, (0, 1)), lambda: [1, 2]),
    "flip": (lambda v: _x().flip(v), lambda: [0, 2]),
    "pad": (lambda v: torch.nn.functional.pad(_x(), v), lambda: [1, 2]),
    "interpolate": (lambda v: torch.nn.functional.interpolate(_x(), size=v), lambda: [8]),
    "layer_norm": (lambda v: torch.nn.functional.layer_norm(_x(), v), lambda: [3, 4]),
    "einsum": (lambda v: torch.einsum("ij,ij->i", *v), _tensors),
    "number": (lambda v: _x() + v, lambda: [1]),
    "clamp": (lambda v: _x().clamp(min=v), lambda: [1]),
    "addcmul": (lambda v: torch.add(_x(), _x(), alpha=v), lambda: [1]),
    "select": (lambda v: _x().select(1, v), lambda: [1]),
    "flag": (lambda v: _x().sum(0, v), lambda: [1]),
}


def _made(tensor: torch.Tensor) -> Any:
    """A tensor of given values; of one that is as long as a number says only its shape counts."""
    return tensor.shape if tensor.numel() < 2 else tensor


def _store(key: Any, value: Any) -> torch.Tensor:
    tensor = _x()
    tensor[key] = value
    return tensor


def of_op_info() -> Iterator[tuple[str, Callable[[Any], Any], Callable[[], list[Any]]]]:
    """The functions of PyTorch's database that take a sequence, at the place where they do."""
    for op in op_db:
        try:
            samples = op.sample_inputs("cpu", torch.float32)
            found = next((f for f in map(_sequence_of, samples) if f is not None), None)
        except Exception:  # of a library that is not installed
            continue
        if found is not None:
            sample, place = found
            yield op.formatted_name, *_with_place(op.op, sample, place)


def _sequence_of(sample: Any) -> tuple[Any, Any] | None:
    places: list[Any] = ["input"] if _is_sequence(sample.input) else []
    places += [i for i, value in enumerate(sample.args) if _is_sequence(value)]
    places += [name for name, value in sample.kwargs.items() if _is_sequence(value)]
    return (sample, places[0]) if places else None


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple, torch.Size) and len(value) > 0


def _with_place(
    op: Any, sample: Any, place: Any
) -> tuple[Callable[[Any], Any], Callable[[], list[Any]]]:
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    if type(place) is str and place != "input":
        return lambda v: op(*args, **(kwargs | {place: v})), lambda: list(kwargs[place])
    index = 0 if place == "input" else place + 1
    return (
        lambda v: op(*args[:index], v, *args[index + 1 :], **kwargs),
        lambda: list(args[index]),
    )


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or raises, as plain data."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _plain(call())
    except Exception as problem:
        text = re.sub(r"0x[0-9a-f]+", "0x", str(problem))
        return type(problem).__name__, text.splitlines()[:1]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        data = value.detach().resolve_conj().resolve_neg()
        return str(value.dtype), tuple(value.shape), value.stride(), _rounded(data)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_plain(item) for item in value]
    return repr(value)


def _rounded(data: torch.Tensor) -> str:
    return str([f"{number:.3g}" for number in data.flatten().tolist()])


def differences(
    name: str, function: Callable[[Any], Any], items: Callable[[], list[Any]], share: slice = ALL
) -> Iterator[str]:
    """Subclasses for which a compiled call is another one than the eager call: of an instance that
    is made in the frame, of one from outside, of the next ones, and of one whose class has other
    methods meanwhile. share: which subclasses are tried."""
    for title, make in [*subclasses()][share]:
        try:
            values = [make(items()), make([*items(), *items()][1:]), make(items())]
        except Exception:  # no sequence of such items
            continue

        braze.reset()
        wanted = outcome(lambda: _inside(function, make, items))  # noqa: B023
        inside = braze.compile(_inside, backend="eager")
        got = outcome(lambda: inside(function, make, items))  # noqa: B023
        if got != wanted:
            yield f"{name}, {title}, made inside: {got} for {wanted}"
        compiled = braze.compile(function, backend="eager")
        for turn, value in enumerate((*values, values[0])):
            if turn == len(values):
                _redefine(type(value))
            wanted = outcome(lambda: function(value))  # noqa: B023
            got = outcome(lambda: compiled(value))  # noqa: B023
            if got != wanted:
                yield f"{name}, {title}, call {turn}: {got} for {wanted}"


def _inside(function: Any, make: Any, items: Any) -> Any:
    return function(make(items()))


def _redefine(cls: Any) -> None:
    """Give the methods of a subclass the meaning of another one's."""
    for name, method in METHODS["all"].items():
        setattr(cls, name, method)


def cases() -> Iterator[tuple[str, Callable[[Any], Any], Callable[[], list[Any]]]]:
    """All functions that are asked."""
    for name, (function, items) in FIXED.items():
        yield name, function, items
    yield from of_op_info()


def main() -> None:
    """Print each difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    count = 0
    for index, (name, function, items) in enumerate(cases()):
        if given.only in name and index % given.every == 0:
            for line in differences(name, function, items):
                count += 1
                print(line[:400], flush=True)
    print(count, "differences")


if __name__ == "__main__":
    main()
