"""torch's operators that take functions (`while_loop`, `map`, `scan`, flex attention, a region
under `no_grad` or autocast): what each does with them in eager, as Python for the interpreter."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from braze.compat import private_names as private
from braze.compat.private_names import pytree
from braze.compat.torch.higher_order.flex_attention import attention_in_python

# What functions marked by torch.compiler.nested_compile_region call, with the function first. In
# eager it calls that function; where it is told that a compiler is at work, it raises.
CALL_REGION: Any = private.invoke_subgraph_placeholder


def python_of(operator: Any) -> types.FunctionType | None:
    """The function that runs an operator in eager; None if it is no such operator, or has none."""
    if not issubclass(type(operator), private.HigherOrderOperator):
        return None
    found = _IN_PYTHON.get(operator.name()) or operator.py_kernels.get(
        private.DispatchKey.CompositeExplicitAutograd
    )
    return found if type(found) is types.FunctionType else None


def _scanned(combine: Any, init: Any, rows: Any, additional_inputs: Any = ()) -> tuple[object, ...]:
    """What `scan` gives: the last of what is carried and the results of all rows. Where the program
    calls `scan`, both are in the trees that its function gives them in, which PyTorch's own
    compiler makes; where it calls the operator, they are leaves in a row, as in eager."""
    count, has_trees = len(init), hasattr(combine, "keywords")
    carried, results, tree, result = init, [], None, None
    for number in range(max(rows[0].shape[0], 1)):  # eager raises, too, where there is no row
        made = combine(*carried, *[each[number] for each in rows], *additional_inputs)
        if has_trees:
            tree, result = made
        leaves = pytree.tree_leaves(made)
        for before, after in zip(carried, leaves[:count]):
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                raise RuntimeError("scan: what is carried changes its shape or dtype")
        carried = leaves[:count]
        results.append(leaves[count:])
    columns = [
        None if column[0] is None else torch.stack(column)  # each row gives None
        for column in zip(*results)
    ]
    if not has_trees:
        return (*carried, *columns)
    return tree, pytree.tree_unflatten(columns, pytree.tree_structure(result))


def combined_by_doubling(combine: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """What an associative scan gives: each turn combines every row with the one that stands a
    distance before it, which has the sum of as many rows, and doubles the distance (Hillis and
    Steele, Data Parallel Algorithms, 1986).

    combine: of the leaves of as many rows before and of the rows, each with the rows first.
    """
    count = leaves[0].shape[0]
    if count == 1:
        return leaves
    number = torch.arange(count, device=leaves[0].device)

    def goes_on(distance: torch.Tensor, *carried: torch.Tensor) -> torch.Tensor:
        return distance < count

    def turn(distance: torch.Tensor, *carried: torch.Tensor) -> list[torch.Tensor]:
        source = number - distance.to(number.device)
        before = [x.index_select(0, source.clamp(min=0)) for x in carried]
        made = pytree.tree_leaves(combine(*before, *carried))
        has_one = source >= 0
        return [distance * 2] + [
            torch.where(has_one.view(-1, *[1] * (old.dim() - 1)), new, old)
            for new, old in zip(made, carried)
        ]

    started = torch.tensor(1, device="cpu")
    # What is carried keeps its strides; eager's results are contiguous.
    begun = [x.clone(memory_format=torch.contiguous_format) for x in leaves]
    scanned: list[torch.Tensor] = WHILE_LOOP(goes_on, turn, (started, *begun), ())[1:]
    return scanned


def _with_grad_mode(enabled: bool, body: Any, *args: Any, **kwargs: Any) -> object:
    with torch.set_grad_enabled(enabled):
        return body(*args, **kwargs)


def _with_autocast(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    body: Any,
    *args: Any,
    **kwargs: Any,
) -> object:
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        return body(*args, **kwargs)


def _checkpointed(body: object, *args: object, **kwargs: Any) -> object:
    return checkpoint(body, *args, **{"use_reentrant": False, **kwargs})


# By the operators' names: `scan`, which gives leaves in eager; attention with functions of scores,
# which enters a torch mode there; and regions that PyTorch's capture
# makes of context managers, those of their classes' own `__call__`, which hides the body from
# compilers.
_IN_PYTHON: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        "scan": _scanned,
        "flex_attention": attention_in_python,
        "wrap_with_set_grad_enabled": _with_grad_mode,
        "wrap_with_autocast": _with_autocast,
        "tag_activation_checkpoint": _checkpointed,
    }
)

# What the operators of `torch.cond`, `while_loop`, `scan` and `map` run in eager.
COND: Any = python_of(torch.ops.higher_order.cond)
WHILE_LOOP: Any = python_of(torch.ops.higher_order.while_loop)
SCAN: Any = python_of(torch.ops.higher_order.scan)
MAP: Any = python_of(torch.ops.higher_order.map_impl)
# What `associative_scan` runs in eager, behind `vmap` of the program's function.
ASSOCIATIVE: Any = private.generic_associative_scan
