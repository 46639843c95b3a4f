"""Operators that programs define by `torch.library`, and the gradients that they register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from braze.compat.private_names import OPDEFS
from braze.frozen import frozen


@final
@frozen(eq=False)
class RegisteredGradient:
    """operator: the overload; setup_context: keeps what the backward needs, by keywords (`ctx`,
    `inputs`, `output`), or None; backward: `(ctx, *gradients) -> gradients of the inputs`."""

    operator: torch._ops.OpOverload
    setup_context: Callable[..., Any] | None
    backward: Callable[..., Any]


def definition_of(function: Any) -> Any:
    """What `torch.library.custom_op` made the operator of; None for all others. function: an
    overload, or the packet that stands for the only one."""
    name = getattr(function, "_qualified_op_name", None)
    if name is None:
        name = function._schema.name
    return OPDEFS.get(name)


def registered_gradient(definition: Any) -> RegisteredGradient | None:
    """The gradient that the program registered for an operator; None where it has none, and where
    it is one of keyword-only arguments or of lists of tensors, or of an operator that writes."""
    if definition is None or definition._backward_fn is None:
        return None
    operator = definition._opoverload
    schema = operator._schema
    kinds = [str(value.type) for value in (*schema.arguments, *schema.returns)]
    lists = [kind for kind in kinds if "List" in kind and "Tensor" in kind]
    if lists or schema.is_mutable or any(argument.kwarg_only for argument in schema.arguments):
        return None
    return RegisteredGradient(operator, definition._setup_context_fn, definition._backward_fn)


def positional(
    operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any] | None:
    """All arguments in the order of the operator's schema; None where they do not fit it."""
    left = dict(kwargs)
    values = list(args)
    for argument in operator._schema.arguments[len(args) :]:
        if argument.name in left:
            values.append(left.pop(argument.name))
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            return None
    return None if left or len(values) != len(operator._schema.arguments) else values
