"""Facts about operators: from their schemas, and from a table of what schemas omit."""

from __future__ import annotations

import enum
import functools
from dataclasses import field, replace
from typing import Any, final

import torch

from braze.compat.torch import dispatcher as dispatch
from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.op_effects import hides_effects, is_collective
from braze.ir.graphs.random_ops import is_random


class OperatorKind(enum.Enum):
    """How the tracer treats a call."""

    FUNCTIONAL = "functional"
    VIEW = "view"
    WRITE = "write"  # some arguments receive new contents; `functional` computes them
    OPAQUE_WRITE = "opaque write"  # ... and no functional form exists
    METADATA = "metadata"  # changes sizes or storage of an existing tensor
    DATA = "data"  # needs values
    COMPOSITE = "composite"
    SIZES = "sizes"  # C++ that needs the numbers of sizes
    HIDDEN = "hidden"  # does, or may do, what its schema does not say
    COLLECTIVE = "collective"  # begins or awaits what a process group does


@final
@frozen
class OpFacts:
    """written: positions (in the schema's arguments) of the arguments that are written to.
    functional: the overload without writes; its returns are the call's fresh returns, then the
        new contents of the written arguments.
    numbers: positions of the arguments that are numbers, which a dtype may not hold. What draws
        random numbers has none here, since nobody may ask it which it takes: it would draw some.
    is_asked: whether its kernel may be called to see which arguments it takes (`kernel_checks`).
    operands: positions where a number is an operand (a `Scalar`, or in a tensor's place), not a
        dimension or a size.
    taken: kinds of arguments that it was found to take."""

    op: torch._ops.OpOverload
    kind: OperatorKind
    random: bool = False
    written: tuple[int, ...] = ()
    functional: torch._ops.OpOverload | None = None
    argument_names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    is_asked: bool = False
    operands: frozenset[int] = frozenset()
    taken: set[Any] = field(default_factory=set, compare=False)


_SIZE_QUESTIONS = frozenset({"aten::size", "aten::stride"})
_METADATA_CHANGES = frozenset(
    f"aten::{name}"
    for name in (
        "resize_ resize_as_ set_ set_data transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_ "
        "as_strided_ resize resize_as _resize_output_ rename_ sparse_resize_ detach_ "
    ).split()
)
_DATA = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense item is_nonzero equal nonzero masked_select "
        "_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount "
        "repeat_interleave.Tensor _assert_scalar _to_sparse to_sparse allclose "
        "_pack_padded_sequence"
    ).split()
)
# Tagged as dynamic for some arguments only: boolean masks, which the tracer refuses itself.
_STATIC_AFTER_ALL = frozenset({"aten::index", "aten::nonzero_static", "aten::linalg_lstsq"})
# In-place operators whose functional form is not called after them.
_FUNCTIONAL_NAMES = {"normal_": "normal_functional"}
# Their functional forms make contiguous results, so they draw in another order than the in-place
# call does in memory of other strides (tests/regress/test_dropout_strides.py).
_BOUND_TO_STRIDES = frozenset({"bernoulli_"})


@functools.cache
def describe_op(op: torch._ops.OpOverload) -> OpFacts:
    """The facts about one overload."""
    facts = _without_numbers(op)
    if is_random(op):
        return facts
    places = [
        place
        for place, argument in enumerate(op._schema.arguments)
        if str(argument.type) in _NUMBER_TYPES and argument.name not in _NEVER_CONVERTED
    ]
    is_asked = facts.kind in _ASKED_KINDS and op.namespace == "aten" and op not in _NOT_ASKED
    takes_tensors = any("Tensor" in str(argument.type) for argument in op._schema.arguments)
    operands = [n for n, a in enumerate(op._schema.arguments) if str(a.type) in _OPERAND_TYPES]
    return replace(
        facts,
        numbers=tuple(places),
        is_asked=is_asked and takes_tensors,
        operands=frozenset(operands),
    )


_ASKED_KINDS = frozenset({OperatorKind.FUNCTIONAL, OperatorKind.WRITE, OperatorKind.OPAQUE_WRITE})
# Of these hardly any data are taken, and not the zeros and ones that stand for the program's.
_NOT_ASKED = frozenset({aten.segment_reduce.default})
_NUMBER_TYPES = frozenset({"number", "Optional[number]"})
_OPERAND_TYPES = _NUMBER_TYPES | {"Tensor", "Optional[Tensor]"}
_NEVER_CONVERTED = frozenset({"correction"})  # of a variance: it is taken from a count


def _without_numbers(op: torch._ops.OpOverload) -> OpFacts:
    schema = op._schema
    names = tuple(argument.name for argument in schema.arguments)
    qualified = schema.name
    if qualified in _SIZE_QUESTIONS:
        return OpFacts(op, OperatorKind.SIZES, argument_names=names)
    if qualified in _METADATA_CHANGES:
        return OpFacts(op, OperatorKind.METADATA, argument_names=names)
    if qualified in _DATA or str(op).replace(".default", "").replace("aten.", "aten::") in _DATA:
        return OpFacts(op, OperatorKind.DATA, argument_names=names)
    if dispatch.needs_data(op) and qualified not in _STATIC_AFTER_ALL:
        return OpFacts(op, OperatorKind.DATA, argument_names=names)
    if is_collective(op):
        return OpFacts(op, OperatorKind.COLLECTIVE, argument_names=names)
    if hides_effects(op):
        return OpFacts(op, OperatorKind.HIDDEN, argument_names=names)
    written = tuple(
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    random = is_random(op)
    functional = _functional_overload(op, written) if written else None
    if dispatch.is_of_lists(op):
        return OpFacts(op, OperatorKind.COMPOSITE, random, written, functional, names)
    if written:
        kind = OperatorKind.WRITE if functional is not None else OperatorKind.OPAQUE_WRITE
        return OpFacts(op, kind, random, written, functional, names)
    if dispatch.is_composite(op):
        return OpFacts(op, OperatorKind.COMPOSITE, random, argument_names=names)
    if any(argument.alias_info is not None for argument in schema.arguments):
        return OpFacts(op, OperatorKind.VIEW, argument_names=names)
    return OpFacts(op, OperatorKind.FUNCTIONAL, random, argument_names=names)


def _functional_overload(
    op: torch._ops.OpOverload, written: tuple[int, ...]
) -> torch._ops.OpOverload | None:
    schema = op._schema
    namespace, name = schema.name.split("::")
    if name in _BOUND_TO_STRIDES:
        return None
    functional_name = _FUNCTIONAL_NAMES.get(name)
    if functional_name is None:
        functional_name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if name.startswith("__i") and name.endswith("__"):
        functional_name = "__" + name[3:]
    wanted = [
        (a.name, str(a.type))
        for position, a in enumerate(schema.arguments)
        if not (position in written and a.is_out)
    ]
    fresh = sum(1 for result in schema.returns if result.alias_info is None)
    out_arguments = len(written)
    for candidate in dispatch.overloads(namespace, functional_name):
        other = candidate._schema
        if [(a.name, str(a.type)) for a in other.arguments] != wanted:
            continue
        if any(a.alias_info is not None and a.alias_info.is_write for a in other.arguments):
            continue
        if len(other.returns) == fresh + out_arguments:
            return candidate
    return None
