"""What an operator does besides computing its results, as far as that is known.

Pure, and so dropped where nobody reads the results, are operators of PyTorch's own that only
compute: functional by their schema, and in no table here. All others stay, once and in order: an
operator of a library may log, count or send. Where a schema cannot say what a call does (a process
group, a stream, a handle of work under way), or is known not to say it, nothing is recorded: the
graph breaks and the call is made for real.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import torch

from braze.compat.torch.registered_ops import NAMESPACE
from braze.ir.graphs.random_ops import is_random

# Namespaces whose operators do what their schemas say and no more. `braze` has Braze's own.
_PURE = frozenset({"aten", "prims", "torchvision", NAMESPACE})
# They give a token to order them by, where others of the kind give nothing.
_CHECKS = frozenset(
    {
        "aten::_functional_assert_async",
        "aten::_functional_assert_scalar",
        "aten::_functional_sym_constrain_range",
        "aten::_functional_sym_constrain_range_for_size",
    }
)
# They write to arguments that their schemas call inputs: running statistics, weights, copies.
HIDDEN_WRITES = frozenset(
    {
        "aten::_copy_from",
        "aten::_copy_from_and_resize",
        "aten::_no_grad_embedding_renorm_",
        "aten::_propagate_xla_data",
        "aten::batch_norm_gather_stats",
        "aten::batch_norm_gather_stats_with_counts",
        "aten::batch_norm_update_stats",
    }
)
# They are done at once, and hold on to nothing; what they say is said of the process.
_STATE_OF_PROCESS = frozenset(
    {
        "aten::_cufft_clear_plan_cache",
        "aten::_cufft_get_plan_cache_max_size",
        "aten::_cufft_get_plan_cache_size",
        "aten::_cufft_set_plan_cache_max_size",
        "aten::_print",
        "aten::_use_cudnn_rnn_flatten_weight",
        "aten::initial_seed",
        "aten::manual_seed",
        "aten::record_stream",
        "aten::save",
        "aten::seed",
        "aten::set_grad_enabled",
        "aten::warn",
    }
)
# PyTorch's functional collectives: they begin, and read their operands until the wait.
_COLLECTIVES = "_c10d_functional"
_NOT_BEGINNING = frozenset({"wait_tensor", "_wrap_tensor_autograd"})
# Others that communicate, by the name of a group or in memory that processes share.
_COMMUNICATING = frozenset({"c10d", "c10d_functional", "symm_mem"})
# Types of values that a schema says nothing of: classes bound to TorchScript, handles, memory.
_OPAQUE_TYPE = re.compile(r"__torch__|\b(Any|AnyClassType|Await|Future|RRef|Storage|Stream)\b")


# The updates of `torch.optim`'s fused=True, which write to gradients only to unscale them, and not
# to counters of steps: these are raised before.
_UPDATES = re.compile(r"aten::_fused_(adam|adamw|sgd|adagrad)_?$")


@functools.cache
def hides_effects(op: torch._ops.OpOverload) -> bool:
    """Whether a call does, or may do, what its schema does not say: it must not be recorded."""
    schema = op._schema
    if schema.name in HIDDEN_WRITES or schema.name in _STATE_OF_PROCESS:
        return True
    if _namespace(op) == _COLLECTIVES:
        return False
    values = [*schema.arguments, *schema.returns]
    is_opaque = any(_OPAQUE_TYPE.search(str(value.type)) for value in values)
    return is_opaque or _namespace(op) in _COMMUNICATING


@functools.cache
def has_effects(op: torch._ops.OpOverload) -> bool:
    """Whether a call must be made once and in its order, though nobody reads its results: it draws
    random numbers, writes, checks, or is not known to be pure."""
    schema = op._schema
    if is_random(op) or schema.is_mutable or not schema.returns or schema.name in _CHECKS:
        return True
    return _namespace(op) not in _PURE


@functools.cache
def is_irrevocable(op: torch._ops.OpOverload) -> bool:
    """Whether a call does what nobody can take back: the program must not run again from before
    it. Random numbers can be (`RandomStates`), and what ATen writes to are the graph's own copies.
    """
    return _namespace(op) not in _PURE


def untouched_arguments(op: torch._ops.OpOverload, kwargs: Mapping[str, object]) -> frozenset[str]:
    """The arguments that a call leaves as they are, though the schema says that it writes them.
    kwargs: of the call."""
    if not _UPDATES.match(op._schema.name):
        return frozenset()
    unscaled = frozenset({"grads"}) if kwargs.get("grad_scale") is None else frozenset()
    return unscaled | {"state_steps"}


def is_collective(op: torch._ops.OpOverload) -> bool:
    """Whether the operator is one of PyTorch's functional collectives, or their wait."""
    return _namespace(op) == _COLLECTIVES


@functools.cache
def is_asynchronous(op: torch._ops.OpOverload) -> bool:
    """Whether the operator reads its operands after the call returned: until the wait for what it
    gives, wherever that is."""
    return is_collective(op) and _name(op) not in _NOT_BEGINNING


@functools.cache
def is_wait(op: torch._ops.OpOverload) -> bool:
    """Whether the operator waits for what is written to its operand, and gives that itself."""
    return is_collective(op) and _name(op) == "wait_tensor"


# --- private ---------------------------------------------------------------------------------


def _namespace(op: torch._ops.OpOverload) -> str:
    return op._schema.name.partition("::")[0]


def _name(op: torch._ops.OpOverload) -> str:
    return op._schema.name.partition("::")[2]
