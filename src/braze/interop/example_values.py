"""`node.meta["example_value"]` of a backend's graph: what a backend asks of a value before a call.

    value = node.meta["example_value"]      # a tensor without data
    value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    value.sum(0).shape                      # operators give further ones

Sizes that are symbols are those at hand. Nothing is computed: an operator is run on PyTorch's meta
tensors, and its results are said to be on the device of its arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import fx

from braze.compat.private_names import pytree
from braze.compat.torch.dispatcher import disabled_torch_function, make_wrapper
from braze.ir.graphs.graph import Value
from braze.ir.types import Size, TensorType
from braze.shapes.expr import constant_value, symbols
from braze.shapes.substitution import substitute

EXAMPLE = "example_value"
_META = torch.device("meta")


@final
class ExampleValue(torch.Tensor):
    """A tensor without data. What reads its elements raises, as of a meta tensor."""

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: torch._ops.OpOverload, types: object, args: object = (), kwargs: Any = None
    ) -> object:
        given = pytree.tree_leaves((args, kwargs))
        devices = [x.device for x in given if isinstance(x, ExampleValue)]
        asked = (kwargs or {}).get("device")
        device = devices[0] if asked is None else torch.device(asked)
        on_meta = {"device": _META} if asked is not None else {}
        plain_args, plain_kwargs = pytree.tree_map(_without_data, (args, kwargs or {}))
        made = op(*plain_args, **{**plain_kwargs, **on_meta})
        return pytree.tree_map(lambda leaf: _example_of(leaf, device), made)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return (
            f"ExampleValue({tuple(self.shape)}, stride={self.stride()}, dtype={self.dtype}, "
            f"device={str(self.device)!r})"
        )

    def __deepcopy__(self, memo: object) -> ExampleValue:
        return self  # a copied graph has the same values

    def __reduce_ex__(self, protocol: object) -> Any:
        facts = (tuple(self.shape), self.stride(), self.dtype, self.device, self.requires_grad)
        return _made, facts


def example_value(value: Value, requires_grad: bool) -> ExampleValue | None:
    """What stands for a value of a graph; None for a number, and where a size is not known before a
    call. requires_grad: it says so where the value does, which only of inputs is known."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return None
    sizes = list(_at_hand((*kind.shape, *kind.stride)))
    if None in sizes:
        return None
    rank = len(kind.shape)
    tracks = requires_grad and kind.requires_grad
    return _made(sizes[:rank], sizes[rank:], kind.dtype, kind.device, tracks)


def complete_examples(graph: fx.Graph) -> None:
    """Give example values to nodes that hold no one value of the graph: sizes, what is computed of
    them, and tuples of results."""
    for node in graph.nodes:
        if EXAMPLE not in node.meta:
            given = [_example_in(argument) for argument in node.args]
            if node.op == "call_method" and node.target in ("size", "stride"):
                if isinstance(given[0], ExampleValue):
                    note_example(node, getattr(given[0], str(node.target))(*given[1:]))
            elif _is_of_numbers(node) and all(type(x) is int for x in given):
                note_example(node, node.target(*given))
    for node in reversed(graph.nodes):  # a tuple in a tuple first
        parts = {n.args[1]: n.meta.get(EXAMPLE) for n in node.users if _is_part(n, node)}
        if parts and EXAMPLE not in node.meta:
            note_example(node, tuple([parts.get(n) for n in range(1 + max(parts))]))


def note_example(node: fx.Node, example: object) -> None:
    """Say what a node holds, by the names that PyTorch's backends ask for."""
    node.meta[EXAMPLE] = node.meta["val"] = example


# --- private ---------------------------------------------------------------------------------


def _example_in(argument: object) -> object:
    return argument.meta.get(EXAMPLE) if isinstance(argument, fx.Node) else argument


def _is_of_numbers(node: fx.Node) -> bool:
    return getattr(node.target, "__module__", "") == "_operator"


def _is_part(node: fx.Node, of: fx.Node) -> bool:
    is_item = node.target is operator.getitem and node.args[0] is of
    return is_item and type(node.args[1]) is int


def _at_hand(sizes: tuple[Size, ...]) -> Iterator[int | None]:
    for size in sizes:
        if isinstance(size, int):
            yield size
            continue
        hints = {symbol: symbol.hint for symbol in symbols(size)}
        known = {symbol: hint for symbol, hint in hints.items() if hint is not None}
        yield constant_value(substitute(size, known)) if len(known) == len(hints) else None


def _made(
    shape: object, stride: object, dtype: object, device: object, requires_grad: bool
) -> ExampleValue:
    made: ExampleValue = make_wrapper(
        ExampleValue,
        shape,
        strides=stride,
        dtype=dtype,
        device=device,
        requires_grad=requires_grad,
    )
    return made


def _example_of(leaf: object, device: torch.device) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return _made(leaf.shape, leaf.stride(), leaf.dtype, device, False)


def _without_data(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=_META)
