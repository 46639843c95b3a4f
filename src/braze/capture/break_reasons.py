"""The catalogue of graph breaks: why capture can stop, and what a user can do about each.

A code is a stable identifier: messages, reports and documents refer to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from braze.ir.frame import GraphBreak
from braze.ir.origin import Origin


@final
@dataclass(frozen=True, slots=True)
class BreakReason:
    """One entry. `template` has one place, `{detail}`; `hint` is one concrete fix."""

    template: str
    hint: str


CATALOGUE: dict[str, BreakReason] = {
    "data-dependent-branch": BreakReason(
        "a branch depends on the values of a tensor: {detail}",
        "use torch.where or torch.cond, or branch on shapes or Python numbers",
    ),
    "data-dependent-value": BreakReason(
        "the program asks for the values of a tensor: {detail}",
        "keep the value a tensor, or read it outside of the compiled function",
    ),
    "input-output": BreakReason(
        "the program does input or output here: {detail}",
        "print or log outside of the compiled function",
    ),
    "explicit": BreakReason(
        "the program asks for a graph break: {detail}",
        "remove the call to graph_break() or disable()",
    ),
    "disabled": BreakReason(
        "a function that disable() leaves out: {detail}",
        "remove disable(), or call it outside of the compiled function",
    ),
    "disallowed": BreakReason(
        "a function that disallow_in_graph() keeps out of graphs: {detail}",
        "remove disallow_in_graph()",
    ),
    "unseen-callable": BreakReason(
        "a callable that cannot be looked into: {detail}",
        "call it outside of the compiled function",
    ),
    "unseen-python": BreakReason(
        "a C function calls Python code where it cannot be followed: {detail}",
        "write the call as a plain Python loop",
    ),
    "unsupported-opcode": BreakReason(
        "a bytecode instruction that is not handled: {detail}",
        "rewrite the statement more plainly",
    ),
    "unsupported-tensor": BreakReason(
        "a tensor operation that cannot be traced: {detail}",
        "run it outside of the compiled function",
    ),
    "unsupported-attribute": BreakReason(
        "an attribute access that cannot be followed: {detail}",
        "read or write the attribute outside of the compiled function",
    ),
    "unsupported-container": BreakReason(
        "a container whose contents cannot be guarded: {detail}",
        "pass the entries as separate arguments",
    ),
    "opaque-object": BreakReason(
        "a value that only C code can read, and no guard can compare: {detail}",
        "pass a Python number or a tensor: int(n), float(n), torch.from_numpy(a)",
    ),
    "unsupported-function": BreakReason(
        "a kind of function that is not interpreted: {detail}",
        "call it outside of the compiled function",
    ),
    "unbuildable-object": BreakReason(
        "an object made here cannot be rebuilt after the graph ran: {detail}",
        "consume the object before the frame ends or breaks",
    ),
    "recursion": BreakReason(
        "calls are nested too deeply: {detail}",
        "turn the recursion into a loop",
    ),
    "module-change": BreakReason(
        "the program changes what a module or its parameters are: {detail}",
        "convert, freeze, parametrize and first call lazy modules outside of the compiled function",
    ),
    "global-state": BreakReason(
        "the program changes or reads what all of PyTorch depends on: {detail}",
        "do it before the compiled function is called",
    ),
    "condition": BreakReason(
        "torch.cond cannot be one graph here: {detail}",
        "let both branches only compute, under no_grad, results of the same shapes and dtypes",
    ),
    "backward-hook": BreakReason(
        "a hook on a module's backward: {detail}",
        "hook the gradients of a tensor that enters or leaves the compiled function",
    ),
    "not-inlined": BreakReason(
        "the call is left to a graph of its own: {detail}",
        "remove the decorator that forbids inlining",
    ),
}


def graph_break(code: str, detail: str, origin: Origin) -> GraphBreak:
    """The break of the catalogue, with its reason filled in."""
    entry = CATALOGUE[code]
    return GraphBreak(code, entry.template.format(detail=detail), entry.hint, origin)
