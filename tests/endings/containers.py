"""Containers that take their own items: every method of every container, given the container.

Of lists, dicts, sets, deques and classes derived from them, made in the program or outside of it;
generated from `dir`. What changes while it is walked raises or ends as in eager.
"""

from __future__ import annotations

import collections
import faulthandler
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import braze
from tests.endings.run import outcome
from tests.shares import todays


class Layers(list[Any]):
    pass


class Table(dict[Any, Any]):
    pass


class Members(set[Any]):
    pass


class Window(collections.deque[Any]):
    pass


class Reversed(list[Any]):
    def __iter__(self) -> Any:
        return reversed([*list.__iter__(self)])


MAKERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda x: [x, x + 1, 3],
    "Layers": lambda x: Layers([x, x + 1, 3]),
    "Reversed": lambda x: Reversed([x, x + 1, 3]),
    "tuple": lambda x: (x, x + 1, 3),
    "dict": lambda x: {"a": x, "b": 2},
    "Table": lambda x: Table(a=x, b=2),
    "OrderedDict": lambda x: collections.OrderedDict(a=x, b=2),
    "defaultdict": lambda x: collections.defaultdict(list, a=x, b=2),
    "Counter": lambda x: collections.Counter("abca"),
    "set": lambda x: {1, 2, 3},
    "Members": lambda x: Members({1, 2, 3}),
    "deque": lambda x: collections.deque([1, 2, x]),
    "deque of 4": lambda x: collections.deque([1, 2, x], 4),
    "Window": lambda x: Window([1, 2, x]),
    "ChainMap": lambda x: collections.ChainMap({"a": 1}, {"b": x}),
    "UserList": lambda x: collections.UserList([1, x]),
    "UserDict": lambda x: collections.UserDict(a=1, b=x),
}
_LEFT_OUT = {
    "__class__",
    "__init_subclass__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__class_getitem__",
}
METHODS = sorted(
    {
        name
        for make in MAKERS.values()
        for name in dir(make(0))
        if callable(getattr(make(0), name)) and name not in _LEFT_OUT
    }
)
# Statements that read a container while they write to it.
_STATEMENTS = (
    "c += c",
    "c |= c",
    "c -= c",
    "c ^= c",
    "c &= c",
    "c *= 3",
    "c[:] = c",
    "c[1:] = c",
    "c[::2] = c[1:]",
    "c[:] = (v for v in c)",
    "del c[:]",
    "c.extend(iter(()))",
    "c.extend(reversed(c))",
    "c.extend(v for v in [*c])",
    "c.extend(map(str, [*c]))",
    "c.update(c.items())",
    "c.update(zip(c, c))",
    "c |= c.items()",
    "for v in c: c.pop()",
    "for v in c: c.append(v) if len(c) < 9 else None",
    "for v in c: c.add((v, len(c)))",
    "for v in c: c[len(c)] = v",
    "for v in c: c.remove(v)",
    "c.append(c); c = len(c)",
    "c.insert(0, c); c = len(c)",
    "c['c'] = c; c = len(c)",
    "c = [*c, *c]",
    "c = {**c, **c}",
    "c = sorted(c, key=lambda v: c.append(1)) if type(c) is list else c",
    "c.sort(key=lambda v: len(c))",
    "c = list(zip(c, c))",
    "c = list(map(lambda a, b: c.index(a), c, c))",
)


def _calls() -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {}
    for name in METHODS:
        found[f".{name}(c)"] = lambda c, name=name: (getattr(c, name)(c), c)
        found[f".{name}(0, c)"] = lambda c, name=name: (getattr(c, name)(0, c), c)
        found[f".{name}([*c])"] = lambda c, name=name: (getattr(c, name)([*c]), c)
    for name in dir(operator):
        if name.startswith("i") and name not in ("itemgetter", "inv", "invert"):
            found[f"operator.{name}"] = lambda c, name=name: (getattr(operator, name)(c, c), c)
    for text in _STATEMENTS:
        space: dict[str, Any] = {}
        exec(f"def call(c):\n    {text}\n    return c", space)
        found[text] = space["call"]
    return found


CALLS = _calls()


def given(x: Any, call: Any, container: Any) -> Any:
    """Of a container from outside."""
    return x + 1, call(container), container


def made(x: Any, call: Any, make: Any) -> Any:
    """Of one that the program makes."""
    container = make(x)
    return x + 1, call(container), container


def differences_of(kind: str, name: str) -> list[str]:
    """Calls of one method of one kind of container that do not end as in eager."""
    make, call, x = MAKERS[kind], CALLS[name], torch.ones(2)
    return [
        *_differences(given, name, lambda function: function(x, call, make(x))),
        *_differences(made, name, lambda function: function(x, call, make)),
    ]


def _differences(
    function: Callable[..., Any], name: str, run: Callable[[Callable[..., Any]], Any]
) -> list[str]:
    compiled = braze.compile(function, backend="aot_eager")
    expected = outcome(lambda: run(function))
    actual = [outcome(lambda: run(compiled)) for _ in range(2)]
    text = f"{function.__name__} {name}: {{!r:.200}} not {expected!r:.200}"
    return [text.format(each) for each in actual if _said(each) != _said(expected)]


def _said(found: Any) -> Any:
    """An outcome. Where a recursion is noticed depends on how deep the call was, which its message
    says."""
    is_recursion = isinstance(found, tuple) and found[:1] == ("RecursionError",)
    return found[:1] if is_recursion else found


def main() -> int:
    """Put every call to every container."""
    failed = 0
    for kind in MAKERS:
        for name in todays(CALLS, 3):
            if name.startswith(".") and not hasattr(MAKERS[kind](0), name[1 : name.index("(")]):
                continue
            faulthandler.dump_traceback_later(20, exit=True)
            print(kind, name, end=" ", flush=True)
            problems = differences_of(kind, name)
            faulthandler.cancel_dump_traceback_later()
            print(*problems, sep="\n   ", flush=True)
            failed += bool(problems)
            braze.reset()
    return failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(min(main(), 100))
