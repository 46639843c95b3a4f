"""What C code asks of values by protocol: each question of `dir()` or of a table, in eager and
compiled, with what the program's own methods note when they are asked."""

from __future__ import annotations

import collections
import datetime
import itertools
import operator
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

LOG: list[Any] = []
X = torch.ones(2)


def _both(program: Callable[..., Any], *calls: tuple[Any, ...], fullgraph: bool = False) -> None:
    """Calls give, raise and note the same, compiled or not."""
    compiled = braze.compile(program, backend="eager", fullgraph=fullgraph)
    for call in calls:
        assert _seen(compiled, call) == _seen(program, call)


def _seen(function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    LOG.clear()
    try:
        result = repr(function(X.clone(), *call))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return result, list(LOG)


def _ask(value: Any, name: str) -> Any:
    try:
        found = getattr(value, name)
    except AttributeError as error:
        return str(error)
    return found if isinstance(found, type) or not callable(found) else "callable"


@pytest.mark.parametrize("kind", [int, float, bool])
def test_symbolic_number_has_attributes_of_its_class(kind: type) -> None:
    names = [*dir(kind), "__dict__", "missing", "facts", "tensor", "node"]

    def program(x: torch.Tensor, n: Any) -> Any:
        n = n > 3 if kind is bool else n
        return [_ask(n, name) for name in names]

    _both(program, *[(kind(n) if kind is float else n,) for n in (2, 7, 5)])


_OF_PLAIN_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "keyword": lambda n: datetime.timedelta(days=n).total_seconds(),
    "position": lambda n: datetime.timedelta(n).total_seconds(),
    "operator": lambda n: (datetime.timedelta(1) * n / (n + 1)).total_seconds(),
    "digits": lambda n: round(n, ndigits=1),
    "bytes": lambda n: struct.pack("<d", n),
}


@pytest.mark.parametrize("name", _OF_PLAIN_NUMBERS)
@pytest.mark.parametrize("kind", [int, float])
def test_c_code_gets_the_number_at_hand(name: str, kind: type) -> None:
    """C code that looks for an int or a float itself takes no number that stands for several."""
    use = _OF_PLAIN_NUMBERS[name]

    def program(x: torch.Tensor, n: Any) -> Any:
        return x * 2, use(n)

    _both(program, *[(kind(n),) for n in (2, 7, 5)], fullgraph=True)


def test_metaclass_is_asked_of_symbolic_numbers() -> None:
    class Asked(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            LOG.append(type(instance).__name__)
            return getattr(instance, "shape", ()) == (2,)

        def __subclasscheck__(cls, other: type) -> bool:
            return True

    class Checked(metaclass=Asked):
        pass

    _both(lambda x, n: (isinstance(n, Checked), isinstance(x, Checked)), (2,), (7,), (0.5,), (1.5,))


class _Float(float):
    pass


class _Reflecting(float):
    def _note(self, other: Any) -> float:
        LOG.append(type(other).__name__)
        return 60.0

    __radd__ = __rmul__ = __rsub__ = __rtruediv__ = __rpow__ = __rmod__ = _note  # type: ignore[assignment]
    __mul__ = __gt__ = __float__ = _note  # type: ignore[assignment]


class _Int(int):
    def __index__(self) -> int:
        LOG.append("index")
        return 9

    def __radd__(self, other: Any) -> int:
        return 60


_OPERATORS = "add mul sub truediv pow mod lt eq iadd imul isub ipow".split()


@pytest.mark.parametrize("number", [_Float(1.5), _Reflecting(1.5), _Int(3)], ids=repr)
def test_tensor_reads_numbers_itself(number: Any) -> None:
    """PyTorch's C++ takes a number of a subclass by its value, before the class is asked."""

    def program(x: torch.Tensor, name: str, left: bool) -> Any:
        held = x + 1
        function = getattr(operator, name)
        made = function(held, number) if left else function(number, held)
        return made, held

    for name, left in itertools.product(_OPERATORS, (True, False)):
        _both(program, (name, left))


class _Bag:
    def __iter__(self) -> Any:
        LOG.append("iter")
        return iter([1, 2])

    def __len__(self) -> int:
        LOG.append("len")
        return 2


class _Refusing(_Bag):
    def __len__(self) -> int:
        raise ValueError("no length")


class _Unsized(_Bag):
    def __len__(self) -> int:
        raise TypeError("no length")

    def __length_hint__(self) -> Any:
        LOG.append("hint")
        return NotImplemented


class _Rows:
    def __getitem__(self, index: int) -> int:
        return [3, 4][index]

    def __len__(self) -> int:
        LOG.append("len")
        return 2


class _Dict(dict):  # type: ignore[type-arg]
    __len__ = _Bag.__len__


class _List(list):  # type: ignore[type-arg]
    __len__ = _Bag.__len__


_USES: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "sorted": sorted,
    "display": lambda d: [*d],
    "call": lambda d: max(*d),
    "extend": lambda d: [].extend(d),  # type: ignore[func-returns-value]
    "list of iterator": lambda d: list(iter(d)),
    "set": set,
    "sum": sum,
    "deque": collections.deque,
    "dict": dict.fromkeys,
}
_HELD = [_Bag(), _Refusing(), _Unsized(), _Rows(), _Dict({1: 2, 3: 4}), _List([5, 6])]


@pytest.mark.parametrize("held", _HELD, ids=lambda one: type(one).__name__)
def test_length_is_asked_where_c_code_asks_it(held: Any) -> None:
    for use in _USES.values():
        _both(lambda x, use=use: use(held))


class _Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        LOG.append(("get", key))
        return 5

    def __contains__(self, key: Any) -> bool:
        LOG.append(("in", key))
        return key != "new"

    def __setitem__(self, key: Any, value: Any) -> None:
        LOG.append(("set", key))
        super().__setitem__(key, value)


class _Made(collections.defaultdict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        LOG.append(("set", key))
        super().__setitem__(key, value)


@pytest.mark.parametrize("name", ["setdefault", "or", "missing"])
def test_dicts_change_by_their_own_methods(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        held = _Made(int) if name == "missing" else _Ordered()
        if name == "setdefault":
            return held.setdefault("new", 1), held.setdefault("old", 2), dict(held.items())
        if name == "or":
            held.__ior__({"a": 1})
            held |= {"b": 2}
            return list(held)
        return held["a"], list(held)

    _both(program, ())


class _Text(str):
    def __eq__(self, other: object) -> bool:
        LOG.append("eq")
        return other == "b"

    __hash__ = str.__hash__


def test_keys_are_compared_as_often_as_in_eager() -> None:
    key, table = _Text("a"), {"a": 1, "b": 2}

    def program(x: torch.Tensor) -> Any:
        found = table.get(key), key in table
        table[key] = 3
        return found, len(table)

    compiled = braze.compile(program, backend="eager")
    expected = _seen(program, ())
    table.clear()
    table.update(a=1, b=2)
    assert _seen(compiled, ())[0] == expected[0]


class _Noticed:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(self.name)


class _Slotted:
    __slots__ = ("held",)


_CHANGES = """
list: held.clear(); held[0] = 1; del held[:1]; held[:] = []; held.pop(); held.remove(held[0])
dict: held.clear(); held["a"] = 1; del held["a"]; held.update(a=2); held.pop("a"); held |= {"a": 3}
deque: held.clear(); held.popleft()
set: held.clear()
object: held.x = 1; del held.x; setattr(held, "x", 2); held.__dict__.clear(); held.x = held.x
slots: held.held = 1; del held.held
"""
_CASES = [
    (kind, change)
    for kind, _, changes in [line.partition(": ") for line in _CHANGES.strip().splitlines()]
    for change in changes.split("; ")
]


def _held(kind: str) -> Any:
    items = [_Noticed("first"), _Noticed("second")]
    if kind in ("object", "slots"):
        made: Any = _Plain() if kind == "object" else _Slotted()
        setattr(made, "x" if kind == "object" else "held", items[0])
        return made
    if kind == "dict":
        return dict(zip("ab", items))
    if kind == "set":
        return {items[0]}
    return items if kind == "list" else collections.deque(items)


class _Plain:
    pass


@pytest.mark.parametrize(("kind", "change"), _CASES)
def test_objects_end_where_they_lose_their_place(kind: str, change: str) -> None:
    space: dict[str, Any] = {"LOG": LOG}
    exec(f"def program(x, held):\n    {change}\n    return list(LOG), x + 1", space)
    seen = []
    for function in (space["program"], braze.compile(space["program"], backend="eager")):
        held = _held(kind)
        LOG.clear()
        seen.append((function(X, held)[0], list(LOG)))
    assert seen[0] == seen[1]
