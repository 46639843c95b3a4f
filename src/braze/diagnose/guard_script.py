"""The smallest program with a guard of a kind, as a script: two calls, of which the second must not
be served by what was compiled for the first.

    def program(x, holder):
        return x * holder.value             # guards holder.value == 2.0

The value is where the wrong guard found its own: an argument, an attribute, an item or a global. A
script is given only where it fails. Made are scripts for guards of numbers, texts, booleans and
None, of the lengths of containers, and of tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import operator
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from braze.diagnose.wrong_guard import WrongGuard
from braze.interop.repro import write_script
from braze.ir.captured.guard import GuardKind, TensorFacts
from braze.ir.captured.source import (
    DictEntrySource,
    FunctionGlobalSource,
    GlobalSource,
    ItemSource,
    LocalSource,
    Source,
)

OPERATOR = "aten.mul.Tensor"  # of every script

_SCRIPT = '''\
"""{reason}

python {name}    ends with 1 where what was compiled for {first} serves a call with {second}.
"""

import operator  # noqa: F401
import sys
from math import inf, nan  # noqa: F401

import torch

import braze

x = torch.arange(1.0, 4.0)
{place}

{function}


compiled = braze.compile(program, fullgraph=True)
for {target} in ({first}, {second}):
    found, expected = compiled({arguments}), program({arguments})
is_wrong = found.shape != expected.shape or not torch.equal(found, expected)
print(f"{{found}} in the place of {{expected}}" if is_wrong else "right")
sys.exit(is_wrong)
'''


def write_guard_script(wrong: WrongGuard, reason: str) -> Path | None:
    """The script's path; None where no script fails as the guard does. Raises OSError where none
    can be written."""
    for first, second, expression in _calls(wrong):
        place = _PLACES[_place(wrong.now.source)]
        fields = {"first": first, "second": second, "reason": reason, **place}
        fields["function"] = place["function"].format(result=expression)
        digest = hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:12]
        name = f"guard_{digest}.py"
        path = write_script(name, _SCRIPT.format(name=name, **fields))
        if _fails(path):
            return path
        path.unlink()
    return None


# --- private ---------------------------------------------------------------------------------

# Where the value is: how it is set, and the program that reads it.
_PLACES = {
    "argument": {
        "place": "",
        "function": "def program(x, value):\n    return {result}",
        "target": "value",
        "arguments": "x, value",
    },
    "attribute": {
        "place": "\n\nclass Holder:\n    pass\n\n\nholder = Holder()",
        "function": "def program(x, holder):\n    value = holder.value\n    return {result}",
        "target": "holder.value",
        "arguments": "x, holder",
    },
    "item": {
        "place": "items = {}",
        "function": 'def program(x, items):\n    value = items["value"]\n    return {result}',
        "target": 'items["value"]',
        "arguments": "x, items",
    },
    "global": {
        "place": "",
        "function": "def program(x):\n    return {result}",
        "target": "value",
        "arguments": "x",
    },
}


def _place(source: Source | None) -> str:
    if isinstance(source, LocalSource):
        return "argument"
    if isinstance(source, GlobalSource | FunctionGlobalSource):
        return "global"
    return "item" if isinstance(source, ItemSource | DictEntrySource) else "attribute"


def _calls(wrong: WrongGuard) -> Iterator[tuple[str, str, str]]:
    """The value of the first call, that of the second, and a program that guards it, as text."""
    kind, value = wrong.now.kind, wrong.now.expected
    expected: Any = _ANYTHING if wrong.before is None else wrong.before.expected
    if kind is GuardKind.TENSOR_MATCH:
        first: Any = _other_facts(value) if expected is _ANYTHING else expected
        yield _tensor(first, value), _tensor(value, first), "value * (value.numel() + value.dim())"
    elif kind is GuardKind.LENGTH:
        first = value + 1 if expected is _ANYTHING else expected
        yield f"[0] * {first}", f"[0] * {value}", "x * len(value)"
    elif kind is GuardKind.TYPE_MATCH and value in _SAMPLES:
        first = next(t for t in _SAMPLES if t is not value) if expected is _ANYTHING else expected
        if first in _SAMPLES:
            shown = f"x * 2 if type(value) is {value.__name__} else x * 3"
            yield _SAMPLES[first], _SAMPLES[value], shown
    elif kind is GuardKind.COMPARES:
        yield from _comparisons(*value)
    elif _is_constant(value):
        yield from _constants(_other_value(value) if expected is _ANYTHING else expected, value)


def _constants(first: object, second: object) -> Iterator[tuple[str, str, str]]:
    if not _is_constant(first):
        return
    if all(type(value) in (int, float) for value in (first, second)):
        yield repr(first), repr(second), "x * value"
    yield repr(first), repr(second), f"x * 2 if value == {first!r} else x * 3"
    yield repr(first), repr(second), "x * 2 if value else x * 3"


def _comparisons(name: str, number: Any, holds: bool) -> Iterator[tuple[str, str, str]]:
    """Of a float whose comparison with a number came out otherwise in the first call."""
    near = [float(number) + step for step in (-1.0, 0.0, 1.0)]
    compare = getattr(operator, name)
    for first, second in itertools.product(near, near):
        if compare(first, number) != holds and compare(second, number) == holds:
            shown = f"x * 2 if operator.{name}(value, {number!r}) else x * 3"
            yield repr(first), repr(second), shown


_ANYTHING = object()
_SAMPLES = {int: "2", float: "2.5", str: "'a'", bool: "True"}


def _is_constant(value: object) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _other_value(value: Any) -> object:
    if type(value) is bool or value is None:
        return not value
    return value + (value if type(value) is str else 1)


def _other_facts(facts: TensorFacts) -> TensorFacts:
    """Of a tensor of fewer elements, or of another dtype."""
    if facts.shape and (facts.shape[0] or 0) > 1:
        return replace(facts, shape=(1, *facts.shape[1:]))
    return replace(facts, dtype=torch.float64 if facts.dtype != torch.float64 else torch.float32)


def _tensor(facts: TensorFacts, others: TensorFacts) -> str:
    """A tensor of these facts; sizes that they do not compare are those of the others, or two."""
    dims = len(facts.shape)
    known = others if len(others.shape) == dims else facts
    sizes = [a or b or 2 for a, b in zip(facts.shape, known.shape)]
    strides = [a or b or 1 for a, b in zip(facts.stride, known.stride)]
    text = f"torch.empty_strided({tuple(sizes)}, {tuple(strides)}, dtype={facts.dtype}).fill_(2)"
    return f"{text}.requires_grad_()" if facts.requires_grad else text


def _fails(path: Path) -> bool:
    """Whether the script, run in this process, ends with 1."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return bool(end.code)
    except Exception:  # another failure is not the guard's
        return False
    return False
