"""Which forms of operators a kernel is written in: the usual ones; those that keep every rounding
of eager; or shorter ones, where all is rounded to a half type before anything else sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import torch

from braze.codegen.triton.operators import EXACT_FORMS, HALVES, RELAXED_FORMS
from braze.ir.kernels.loops import Apply, Buffer, Cast, Load, Scalar
from braze.ir.kernels.scalars import children, loads, walk
from braze.ir.kernels.schedule import Accumulate, ComputedMatrix, Kernel, Store, scalar_of

# Behind these a hair less than a whole number, or than another value, is something else.
_STEPS = frozenset("trunc floor ceil round truncdiv floordiv mod fmod eq ne lt le gt ge".split())
_CHOICES = ("argmax", "argmin")

# What computes a value, if a statement does, and the value.
_Values: TypeAlias = Sequence[tuple[Store | Accumulate | None, Scalar]]


def forms_of_kernel(kernel: Kernel, numerics: str) -> Mapping[str, str]:
    """The forms, by operator, that are not the usual ones."""
    statements = [s for phase in kernel.phases for s in (*phase.body, *phase.row)]
    stored = {
        s.target.dtype for s in statements if isinstance(s, Store) and s.target in kernel.memory
    }
    stored |= {column.dtype for column in kernel.columns}
    read = {buffer.dtype for buffer in kernel.memory}
    return _forms(stored, read, [(s, scalar_of(s)) for s in statements], numerics)


def forms_of_computed(computed: ComputedMatrix, numerics: str) -> Mapping[str, str]:
    """The same, for what is computed where it is multiplied."""
    read = {load.buffer.dtype for load in loads(computed.value)}
    return _forms({computed.value.dtype}, read, [(None, computed.value)], numerics)


def forms_of_attention(score: Scalar, stored: torch.dtype, numerics: str) -> Mapping[str, str]:
    """The same, for a function of scores whose softmax weighs what is stored."""
    read = {load.buffer.dtype for load in loads(score)}
    return _forms({stored}, read, [(None, score)], numerics)


def _forms(
    stored: Collection[torch.dtype],
    read: Collection[torch.dtype],
    values: _Values,
    numerics: str,
) -> Mapping[str, str]:
    if numerics == "eager":
        return EXACT_FORMS
    floats = {dtype for dtype in stored if dtype.is_floating_point}
    if not floats or not floats <= {*HALVES} or torch.float64 in read or _decides(values):
        return {}
    return RELAXED_FORMS


def _decides(values: _Values) -> bool:
    """Whether a step is taken by what operators with shorter forms gave."""
    inexact: set[Buffer] = set()
    for statement, scalar in values:
        for node in walk(scalar):
            if _is_step(node) and any(_is_inexact(below, inexact) for below in children(node)):
                return True
        if statement is not None and _is_inexact(scalar, inexact):
            if isinstance(statement, Accumulate) and statement.kind in _CHOICES:
                return True
            inexact.add(statement.target)
    return False


def _is_step(node: Scalar) -> bool:
    if isinstance(node, Cast):
        return not node.dtype.is_floating_point
    return isinstance(node, Apply) and node.op in _STEPS


def _is_inexact(scalar: Scalar, inexact: Collection[Buffer]) -> bool:
    """Whether anything in it is computed in a shorter form."""
    return any(
        (isinstance(node, Load) and node.buffer in inexact)
        or (isinstance(node, Apply) and node.op in RELAXED_FORMS and node.dtype == torch.float32)
        for node in walk(scalar)
    )
