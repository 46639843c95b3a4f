"""Guards as text: one as the line that `explain` shows, an entry's guard tree as in the logs.

AMBIENT: grad mode on, ...
L['self']
  TYPE_MATCH: Model                                       # model.py:12
  L['self'].layer
    L['self'].layer.weight
      TENSOR_MATCH: Parameter f32[10, 3][3, 1]cpu         # model.py:13
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

import torch

from braze.compat.numpy.interface import ARRAY
from braze.compat.torch.ambient_state import AmbientState
from braze.ir.captured.guard import Guard, SizeCondition, TensorFacts
from braze.ir.captured.guard_tree import PROCESS, RELATIONS, GuardTree
from braze.ir.captured.source import Source
from braze.ir.origin import UNKNOWN
from braze.ir.types import DTYPE_NAMES

# Entries of a gathered guard that are shown.
SHOWN_NAMES = 6
SHOWN_CHARACTERS = 120
# Where the user's lines stand in a tree, unless its texts are shorter.
PLACE_COLUMN = 80


def format_guard(guard: Guard) -> str:
    """`file:line kind source: expected`."""
    place = "" if guard.origin is UNKNOWN else f"{guard.origin.file}:{guard.origin.line} "
    source = "" if guard.source is None else f" {guard.source}"
    return f"{place}{guard.kind.value}{source}{_with_colon(guard.expected)}"


def format_guard_tree(tree: GuardTree) -> str:
    """The guards under the places that they are asked of, with the user's line that made each;
    those of the process and relations between places come first."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(tree.nodes):
        if number != PROCESS:
            children.setdefault(node.operands[0] if node.operands else PROCESS, []).append(number)
    rows = [_row(guard, 0) for guard in tree.nodes[PROCESS].checks]
    rows += [_row(relation.guard, 0) for relation in tree.relations]
    for root in children.get(PROCESS, ()):
        _add_rows(tree, root, 0, children, rows)
    width = min(max((len(text) for text, place in rows if place), default=0), PLACE_COLUMN)
    lines = [f"{text:{width}}  # {place}" if place else text for text, place in rows]
    return "\n".join(lines)


def _add_rows(
    tree: GuardTree,
    number: int,
    depth: int,
    children: dict[int, list[int]],
    rows: list[tuple[str, str]],
) -> None:
    node = tree.nodes[number]
    rows.append((f"{'  ' * depth}{node.source}", ""))
    rows += [_row(guard, depth + 1) for guard in node.checks]
    for child in children.get(number, ()):
        _add_rows(tree, child, depth + 1, children, rows)


def _row(guard: Guard, depth: int) -> tuple[str, str]:
    """A guard's text, and the user's line."""
    related = guard.kind in RELATIONS and guard.source is not None
    of = f" {guard.source}" if related else ""
    text = f"{'  ' * depth}{guard.kind.value}{of}{_with_colon(guard.expected)}"
    return text, f"{guard.origin.file}:{guard.origin.line}" if guard.origin.line else ""


def _with_colon(expected: object) -> str:
    text = _format_expected(expected)
    return f": {text}" if text else ""


def _format_expected(expected: object) -> str:
    if expected is None:
        return ""
    if isinstance(expected, TensorFacts):
        return _format_facts(expected)
    if isinstance(expected, SizeCondition | AmbientState):
        return str(expected)
    if isinstance(expected, frozenset):
        return _shortened(sorted(map(str, expected)))
    if _is_of_sources(expected):
        return _format_sources(expected)
    if isinstance(expected, tuple) and expected and all(isinstance(e, tuple) for e in expected):
        return _shortened([_name_of(entry[0]) for entry in expected if entry])
    if isinstance(expected, torch.nn.Module):
        return type(expected).__qualname__  # its repr prints the whole tree
    if _shows_tensors(expected):
        return type(expected).__qualname__
    text = getattr(expected, "__qualname__", None) or repr(expected)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _shows_tensors(expected: object) -> bool:
    """Whether the representation of an object may show elements of tensors or arrays, as that of a
    container or a dataclass does: traces and logs hold none."""
    if isinstance(expected, torch.Tensor | BaseException) or type(expected) is ARRAY:
        return True
    if isinstance(expected, dict):
        return any(map(_shows_tensors, expected.values()))
    if isinstance(expected, list | tuple | set | deque):
        return any(map(_shows_tensors, expected))
    if isinstance(expected, functools.partial):
        return True
    held = getattr(expected, "__dict__", None)
    return type(held) is dict and any(map(_is_numeric, held.values()))


def _is_numeric(value: object) -> bool:
    return isinstance(value, torch.Tensor) or type(value) is ARRAY


def _is_of_sources(expected: object) -> bool:
    if isinstance(expected, tuple):
        groups = [group for group in expected if group != ()]
        return bool(groups) and all(map(_is_of_sources, groups))
    return isinstance(expected, Source)


def _format_sources(expected: object) -> str:
    """A source; a list of them; groups of them, one in brackets each."""
    if not isinstance(expected, tuple):
        return str(expected)
    if any(isinstance(each, tuple) for each in expected):
        return _shortened([f"[{_format_sources(group)}]" for group in expected])
    return _shortened([str(source) for source in expected])


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _name_of(value: object) -> str:
    return getattr(value, "__qualname__", None) or str(value)


def _format_facts(facts: TensorFacts) -> str:
    shape = ", ".join("?" if size is None else str(size) for size in facts.shape)
    stride = ", ".join("?" if step is None else str(step) for step in facts.stride)
    dtype = DTYPE_NAMES.get(facts.dtype, str(facts.dtype))
    grad = ", requires_grad" if facts.requires_grad else ""
    return f"{facts.tensor_class.__name__} {dtype}[{shape}][{stride}]{facts.device}{grad}"
