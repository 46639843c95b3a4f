"""Guards on tensors: their metadata, which of them share memory, who watches their gradients."""

from __future__ import annotations

from typing import Any

import torch

from braze.compat.torch.autograd_engine import view_kind
from braze.compat.torch.tensor_abi import dispatch_keys, key_names
from braze.ir.captured.guard import Guard, TensorFacts
from braze.ir.captured.guard_tree import compared_sources
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.leaf_hooks import WATCH, none_watched
from braze.runtime.guards.messages import Values
from braze.shapes.memory_overlap import first_meeting


def write_tensor(writer: SourceWriter, guard: Guard) -> str:
    """The text of "is a tensor like this"."""
    return tensor_condition(writer, writer.read(guard.source), guard.expected)


def tensor_condition(writer: SourceWriter, value: str, facts: TensorFacts) -> str:
    """The text of a condition on the tensor that the name `value` holds."""
    terms = [
        f"type({value}) is {writer.constant(facts.tensor_class)}",
        _write_sizes(writer, f"{value}.shape", facts.shape),
        f"{value}.dtype is {writer.constant(facts.dtype)}",
        _write_device(writer, value, facts.device),
        f"{value}.requires_grad" if facts.requires_grad else f"not {value}.requires_grad",
    ]
    if facts.keys:
        writer.namespace["dispatch_keys"] = dispatch_keys
        terms.append(f"dispatch_keys({value}) == {facts.keys}")
    if facts.layout is torch.strided:
        terms.append(_write_stride(writer, value, facts))
    if facts.layout is not torch.strided or facts.device.type != "cpu":
        terms.append(f"{value}.layout is {writer.constant(facts.layout)}")
    always_leaf = facts.is_leaf is True and not facts.requires_grad
    if facts.is_leaf is not None and not always_leaf:
        terms.append(f"{value}.is_leaf is {facts.is_leaf}")
    return " and ".join(terms)


def _write_sizes(writer: SourceWriter, sizes: str, expected: tuple[int | None, ...]) -> str:
    if None not in expected:
        return f"{sizes} == {tuple(expected)!r}"
    name = f"sizes{len(writer.lines)}"
    known = [f"{name}[{i}] == {size}" for i, size in enumerate(expected) if size is not None]
    return " and ".join([f"len({name} := {sizes}) == {len(expected)}", *known])


def _write_stride(writer: SourceWriter, value: str, facts: TensorFacts) -> str:
    if not facts.shape:
        return "True"
    if facts.stride == _contiguous_stride(facts.shape) and _stride_is_certain(facts.shape):
        return f"{value}.is_contiguous()"
    return _write_sizes(writer, f"{value}.stride()", facts.stride)


def _contiguous_stride(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    if None in shape:
        return ()
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * (size or 0))
    return tuple(reversed(strides))


def _stride_is_certain(shape: tuple[int | None, ...]) -> bool:
    """A contiguous tensor's stride is free where a dimension has at most one element."""
    return all(size is not None and size > 1 for size in shape)


def _write_device(writer: SourceWriter, value: str, device: torch.device) -> str:
    if device.type == "cpu":
        return f"{value}.is_cpu"
    return f"{value}.device == {writer.constant(device)}"


def explain_tensor(guard: Guard, value: object, others: Values) -> str | None:
    """Which fact about the tensor differs first."""
    difference = _tensor_difference(guard.expected, value)
    return None if difference is None else f"tensor '{guard.source}' {difference}"


def _tensor_difference(facts: TensorFacts, value: Any) -> str | None:
    tensor_class: Any = facts.tensor_class
    if type(value) is not tensor_class:
        return f"type mismatch. expected {facts.tensor_class}, actual {type(value)}"
    for name in ("dtype", "device", "layout", "requires_grad", "is_leaf"):
        expected, actual = getattr(facts, name), getattr(value, name)
        if expected is not None and expected != actual:
            return f"{name} mismatch. expected {expected}, actual {actual}"
    if facts.keys and facts.keys != dispatch_keys(value):
        expected, actual = key_names(facts.keys), key_names(dispatch_keys(value))
        return f"dispatch key set mismatch. expected {expected}, actual {actual}"
    if len(facts.shape) != value.dim():
        return f"rank mismatch. expected {len(facts.shape)}, actual {value.dim()}"
    pairs = [("size", facts.shape, value.shape)]
    if facts.layout is torch.strided:
        pairs.append(("stride", facts.stride, value.stride()))
    for name, expected_sizes, actual_sizes in pairs:
        for index, (expected, actual) in enumerate(zip(expected_sizes, actual_sizes)):
            if expected is not None and expected != actual:
                return f"{name} mismatch at index {index}. expected {expected}, actual {actual}"
    return None


def explain_offset(guard: Guard, value: Any, others: Values) -> str | None:
    """Where in its storage the tensor begins now."""
    actual = value.storage_offset()
    if actual == guard.expected:
        return None
    expected = guard.expected
    return f"tensor '{guard.source}' storage offset mismatch. expected {expected}, actual {actual}"


def write_view(writer: SourceWriter, guard: Guard) -> str:
    """The text of "autograd takes the tensor for such a view"."""
    writer.namespace["view_kind"] = view_kind
    return f"view_kind({writer.read(guard.source)}) == {guard.expected!r}"


def explain_view(guard: Guard, value: Any, others: Values) -> str | None:
    """What autograd takes the tensor for now."""
    actual = view_kind(value)
    if actual == guard.expected:
        return None
    return f"tensor '{guard.source}' view mismatch. expected {guard.expected}, actual {actual}"


def write_overlap(writer: SourceWriter, guard: Guard) -> str:
    """The text of "no tensor that is written to meets another"."""
    if not any(guard.expected):
        return "True"
    writer.namespace["first_meeting"] = first_meeting
    groups = [
        "(" + "".join(f"{writer.read(source)}, " for source in group) + ")"
        for group in guard.expected
    ]
    return f"first_meeting(({', '.join(groups)})) is None"


def explain_overlap(guard: Guard, value: object, others: Values) -> str | None:
    """Which tensors share memory now, one of which the graph writes to."""
    tensors = iter(others)
    groups = [[next(tensors) for _ in group] for group in guard.expected]
    met = first_meeting(groups)
    if met is None:
        return None
    one, other = (compared_sources(guard)[number] for number in met)
    return f"tensors '{one}' and '{other}' share memory now and did not"


def write_none_watched(writer: SourceWriter, guard: Guard) -> str:
    """The text of "nobody watches the gradients of these leaves"."""
    writer.namespace["none_watched"] = none_watched
    return f"none_watched(({''.join(f'{writer.read(source)}, ' for source in guard.expected)}))"


def explain_none_watched(guard: Guard, value: object, others: Values) -> str | None:
    """Whose gradient is watched now."""
    number = WATCH.first_watched(others)
    if number < 0:
        return None
    return f"somebody watches the gradient of '{guard.expected[number]}' now: it has hooks"
