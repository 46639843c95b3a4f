"""Operators of `torch.library` whose gradient the program registered: functions of autograd.

    torch.library.register_autograd("mine::op", backward, setup_context=setup)
    y = torch.ops.mine.op(x)       is captured as F.apply(x), with
        F.forward = the operator, F.setup_context = setup, F.backward = backward

PyTorch calls these two from C++, where nobody would see what they read. As methods of a function of
autograd they are interpreted (`autograd_functions.py`), and the operator is a node of the graph.

A function of autograd takes and gives tensors: lists of them are passed flat, and keyword-only
arguments last.

Left to PyTorch, and so a break where a gradient is needed: operators that give several lists of
tensors, such that write to their arguments, and gradients that are registered by
`torch.library.Library.impl`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.torch_calls import call_name, leaf_call
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import TENSORS
from braze.capture.state.tensor_attributes import was_given_attributes
from braze.capture.training.autograd_functions import OperatorFunction, apply_function
from braze.compat.torch.custom_ops import (
    RegisteredGradient,
    composition_of,
    definition_of,
    gradient_by_name,
    positional,
    registered_gradient,
    triton_function,
)
from braze.compat.torch.dispatcher import WithoutMode, has_python_kernel_for_all
from braze.frozen import frozen
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def call_operator(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """A call of an operator overload, or of the packet of several."""
    if has_python_kernel_for_all(function) and not interpreter.transforms:
        found = interpreter.native(composition_of, function, args, kwargs)
        if found is not None:
            composition, values, keywords = found
            interpreter.guard_context.source_of_function(composition)
            return interpreter.call(composition, *values, **keywords)
    options = interpreter.request.options
    if not (options is not None and options.fullgraph) and has_python_kernel_for_all(function):
        # It would really be called while the frame is captured, and what it reads is not guarded.
        raise BreakRequested("unsupported-tensor", f"{function}, whose kernel is Python code")
    if not str(function).startswith(("aten.", "prims.")):
        _check_attributes(interpreter, function, [*args, *kwargs.values()])
    definition = definition_of(function)
    inner = None if definition is None else _inner(definition, args, kwargs)
    if torch.is_grad_enabled() and not interpreter.transforms and _is_tracked((args, kwargs)):
        with WithoutMode(interpreter.tracer):
            gradient = registered_gradient(definition) or gradient_by_name(function)
        values = None if gradient is None else positional(gradient.operator, args, kwargs)
        if gradient is not None and values is not None:
            return _apply(interpreter, gradient, values, inner)
    if inner is not None and _may_inline(interpreter, definition, args, kwargs):
        with torch.no_grad():
            return interpreter.call(inner, *args, **kwargs)
    try:
        return leaf_call(interpreter, function, args, kwargs)
    except ProgramRaised as raised:
        if not any(part in str(raised.exception) for part in _LACKS_FAKE):
            raise
    raise BreakRequested("operator-without-fake", call_name(function))


# --- private -------------------------------------------------------------------------------------

# What PyTorch says of operators whose results' sizes nobody can tell without running them.
_LACKS_FAKE = ("There was no fake impl registered", "(as opposed to FakeTensors)")


def _check_attributes(interpreter: Interpreter, function: object, values: list[object]) -> None:
    """Break where a tensor has an attribute that the frame set, which an operator's Python code may
    read: that runs with the graph, whose tensors have none yet."""
    for value in values:
        if type(value) is list or type(value) is tuple:
            _check_attributes(interpreter, function, list(value))
        elif type(value) is TracedTensor and was_given_attributes(interpreter, value):
            detail = f"{function} of a tensor with attributes of the program's own"
            raise BreakRequested("unsupported-tensor", detail)


def _inner(definition: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The function behind an operator of `torch.library.triton_op`."""
    tensor = next((v for v in (*args, *kwargs.values()) if type(v) in TENSORS), None)
    return None if tensor is None else triton_function(definition, tensor.device.type)


def _may_inline(
    interpreter: Interpreter, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the function behind an operator does what the operator does: that counts a write to
    an argument, and gives a result a gradient, or refuses to."""
    tensors = [v for v in (*args, *kwargs.values()) if type(v) in TENSORS]
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    is_mutable = definition._opoverload._schema.is_mutable
    return not (tracked or is_mutable or interpreter.transforms)


def _is_tracked(arguments: Any) -> bool:
    """Whether a tensor among call arguments, or in a list of them, needs gradients."""
    if type(arguments) in TENSORS:
        return bool(arguments.requires_grad)
    items = arguments.values() if type(arguments) is dict else arguments
    return type(arguments) in (tuple, list, dict) and any(map(_is_tracked, items))


def _apply(
    interpreter: Interpreter, gradient: RegisteredGradient, values: list[Any], inner: object
) -> object:
    """The call of an operator as that of a function of autograd. values: in the schema's order."""
    schema = gradient.operator._schema
    values = [
        interpreter.side_effects.contents(value) if type(value) is list else value
        for value in values
    ]
    lengths = tuple(
        [
            len(value) if "Tensor" in kind and type(value) in (list, tuple) else -1
            for kind, value in zip([str(a.type) for a in schema.arguments], values, strict=True)
        ]
    )
    keywords = tuple([argument.name for argument in schema.arguments if argument.kwarg_only])
    returned = [str(result.type) for result in schema.returns]
    is_list = tuple(["List" in kind for kind in returned])
    form = _Form(lengths, keywords, is_list)
    cls = _function_of(gradient.operator, gradient.setup_context, gradient.backward, inner, form)
    flat: list[Any] = []
    for value, length in zip(values, lengths, strict=True):
        flat += [value] if length < 0 else value
    made = apply_function(interpreter, (cls, *flat), {})
    return form.results(made) if any(is_list) else made


@final
@frozen
class _Form:
    """How the arguments and results of a function of autograd are those of an operator. lengths:
    of lists of tensors among the arguments, -1 of other arguments; keywords: the last arguments;
    lists: per result, whether it is a list of tensors, which one may be."""

    lengths: tuple[int, ...]
    keywords: tuple[str, ...]
    lists: tuple[bool, ...]

    def results(self, flat: object) -> Any:
        """The operator's results."""
        items = tuple(flat) if isinstance(flat, (tuple, list)) else (flat,)
        if self.lists == (True,):
            return list(items)
        place = self.lists.index(True)
        end = len(items) - (len(self.lists) - place - 1)
        return (*items[:place], list(items[place:end]), *items[end:])


@functools.lru_cache(256)
def _function_of(operator: Any, setup: Any, backward: Any, inner: Any, form: _Form) -> type:
    """The class of autograd's that stands for the operator: one, since guards know it. inner: what
    computes the operator, where a graph looks into it."""
    compute = operator if inner is None else inner
    plain = max(form.lengths, default=-1) < 0 and not form.keywords and True not in form.lists
    methods = (
        _plain_methods(compute, setup, backward)
        if plain
        else _nested_methods(compute, setup, backward, form)
    )
    body: dict[str, Any] = {name: staticmethod(method) for name, method in methods.items()}
    name, called = str(operator), operator
    if not plain:
        called = _nested_methods(operator, setup, backward, form)["forward"]
        called.__name__ = called.__qualname__ = name.replace(".", "_")
        called = staticmethod(called)
    return type(name, (OperatorFunction,), {**body, "operator": called, "__qualname__": name})


def _plain_methods(compute: Any, setup: Any, backward: object) -> dict[str, Any]:
    def forward(*values: Any) -> object:
        return compute(*values)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if setup is not None:
            setup(ctx=ctx, inputs=inputs, output=output)

    return {"forward": forward, "setup_context": setup_context, "backward": backward}


def _nested_methods(compute: Any, setup: Any, backward: Any, form: _Form) -> dict[str, Any]:
    lengths, keywords, lists = form.lengths, form.keywords, form.lists
    count = len(lengths) - len(keywords)

    def nested(flat: Any) -> tuple[object, ...]:
        found, place = [], 0
        for length in lengths:
            found.append(flat[place] if length < 0 else list(flat[place : place + length]))
            place += 1 if length < 0 else length
        return tuple(found)

    def results(flat: Any) -> tuple[object, ...]:
        if True not in lists:
            return tuple(flat)
        place = lists.index(True)
        end = len(flat) - (len(lists) - place - 1)
        return (*flat[:place], list(flat[place:end]), *flat[end:])

    def forward(*flat: object) -> object:
        values = nested(flat)
        made = compute(*values[:count], **dict(zip(keywords, values[count:])))
        if True not in lists:
            return made
        found: list[Any] = []
        for item in made if len(lists) > 1 else (made,):
            found.extend(item if isinstance(item, (list, tuple)) else (item,))
        return tuple(found)

    def setup_context(ctx: Any, inputs: object, output: Any) -> None:
        if setup is None:
            return
        values, needed = nested(inputs), ctx.needs_input_grad
        if True in lists:
            made = results(output)
            output = made if len(lists) > 1 else made[0]
        ctx.needs_input_grad = nested(needed)[:count]
        if keywords:
            named = dict(zip(keywords, values[count:]))
            setup(ctx=ctx, inputs=values[:count], keyword_only_inputs=named, output=output)
        else:
            setup(ctx=ctx, inputs=values, output=output)
        ctx.needs_input_grad = needed

    def flat_backward(ctx: Any, *gradients: Any) -> tuple[object, ...]:
        needed = ctx.needs_input_grad
        ctx.needs_input_grad = nested(needed)[:count]
        made = backward(ctx, *results(gradients))
        ctx.needs_input_grad = needed
        found: list[Any] = []
        for value, length in zip(made if isinstance(made, tuple) else (made,), lengths):
            if length < 0:
                found.append(value)
            else:
                found.extend([None] * length if value is None else value)
        return (*found, *[None] * len(keywords))

    return {"forward": forward, "setup_context": setup_context, "backward": flat_backward}
