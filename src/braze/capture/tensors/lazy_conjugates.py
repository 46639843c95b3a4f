"""Inputs with their conjugate or negative bit set: the graph has their memory, and computes on.

    z = x.conj()                  %0 is the memory of z
    compiled(z)         ->        %1 = _conj_physical(%0)         # what the program has as z

The bits are among the facts that the entry compares. As for a conjugate that the program makes
itself, what shows that z shares memory with x breaks the graph: a write to one of them, a result
that is a view of z, a question for its bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from braze.capture.calls.torch_calls import leaf_call
from braze.compat import private_names as private
from braze.compat.torch.ambient_state import call_untraced
from braze.compat.torch.tensor_abi import plain_memory
from braze.ir.captured.source import PlainMemorySource, Source
from braze.tracing import Untraceable
from braze.tracing.graph_inputs import Layout

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.tracing.fake_tensor import TracedTensor


def wrap_lazy(
    interpreter: Interpreter, real: torch.Tensor, source: Source, layout: Layout | None
) -> TracedTensor:
    """The fake tensor with the numbers of such a tensor. Raises Untraceable where it is one that
    the
    graph cannot have."""
    guard_context, tracer = interpreter.guard_context, interpreter.tracer
    if not tracer.computes_lazy:
        raise Untraceable("a lazily conjugated or negated tensor that is looked at")
    if interpreter.transforms or real.is_inference() or torch.is_inference_mode_enabled():
        raise Untraceable("a lazily conjugated or negated tensor: call resolve_conj() first")
    if real.requires_grad and real.is_leaf:
        raise Untraceable("a lazily conjugated or negated leaf")
    plain = call_untraced(plain_memory, (real,), {})
    memory = PlainMemorySource(source)
    made = tracer.add_input(plain, layout=layout)
    guard_context.input_sources.append(memory)
    guard_context.fakes[id(plain)] = made
    guard_context.known[id(plain)] = (plain, memory)
    guard_context.known[id(made)] = (made, memory)
    guard_context.give_class(made, torch.Tensor)
    with torch.set_grad_enabled(real.requires_grad):
        if real.is_neg():
            made = leaf_call(interpreter, private.negative_view, (made,), {})
        if real.is_conj():
            made = leaf_call(interpreter, torch.conj, (made,), {})
    tracer.add_lazy_input(made, real)
    return made
