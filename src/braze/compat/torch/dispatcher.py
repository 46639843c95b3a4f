"""Private names of torch's dispatcher, tensor wrappers and custom operator libraries.

The only place where fake tensors reach below torch's public surface.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
from collections.abc import Callable
from typing import Any, final

import torch

from braze.class_facts import fact_of_class
from braze.compat import private_names as private
from braze.compat.private_names import (
    OpOverload as OpOverload,
)
from braze.compat.private_names import (
    OpOverloadPacket as OpOverloadPacket,
)
from braze.compat.private_names import (
    TorchDispatchMode as TorchDispatchMode,
)
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import note_write
from braze.compat.torch.functorch import storage_behind
from braze.compat.torch.versions import TORCH

push_dispatch_mode: Callable[[Any], None] = private.push_dispatch_mode
pop_dispatch_mode: Callable[[Any], Any] = private.pop_dispatch_mode
dispatch_mode_count: Callable[[], int] = private.dispatch_mode_count
disabled_torch_function: Any = private.disabled_torch_function
torch_function_enabled: Callable[[], bool] = private.torch_function_enabled
disabled_torch_dispatch: Any = private.disabled_torch_dispatch
is_functorch_wrapped: Callable[[torch.Tensor], bool] = private.is_functorch_wrapped


@final
class WithoutMode:
    """Real operators on real tensors, where the mode is the innermost one.

    No generator: one that an interrupt leaves suspended would push the mode back whenever it is
    collected.
    """

    __slots__ = ("_found", "_mode")

    def __init__(self, mode: object) -> None:
        self._mode = mode
        self._found: Any = None

    def __enter__(self) -> None:
        self._found = pop_dispatch_mode(None) if dispatch_mode_count() else None
        if self._found is not None and self._found is not self._mode:
            push_dispatch_mode(self._found)
            raise RuntimeError("another dispatch mode is active")

    def __exit__(self, *exception: object) -> None:
        if self._found is not None:
            push_dispatch_mode(self._mode)


@final
class WithoutModes:
    """A block in which no dispatch mode is active: what is traced in it is no part of a trace that
    goes on."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[Any] = []

    def __enter__(self) -> None:
        while dispatch_mode_count():
            self._found.append(pop_dispatch_mode(None))

    def __exit__(self, *exception: object) -> None:
        while self._found:
            push_dispatch_mode(self._found.pop())


_TAGS_OF_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


# make_wrapper(cls, shape, stride, offset, dtype=, device=, requires_grad=, storage_size=0): a
# tensor of `cls` with this metadata and a storage of no bytes.
make_wrapper: Callable[..., Any] = private.make_wrapper
# forbid_data_pointer(tensor): C++ code that asks for the tensor's memory gets an error. Without it,
# a tensor without storage answers 0 where its sizes are symbolic, and such code reads from there.
forbid_data_pointer: Callable[[torch.Tensor], None] = private.forbid_data_pointer


def has_custom_dispatch(tensor_class: type[torch.Tensor]) -> bool:
    """Whether a tensor class intercepts operators below autograd."""
    return tensor_class.__torch_dispatch__ is not disabled_torch_dispatch


class TorchFunction(enum.Enum):
    """What a tensor class does when torch functions are called on it."""

    NONE = "results are plain tensors"
    DEFAULT = "results are of the class"
    OWN = "its own Python code runs"


@fact_of_class
def torch_function_of(tensor_class: type) -> TorchFunction:
    """By what the class inherits."""
    if tensor_class is torch.Tensor:
        return TorchFunction.NONE
    for base in tensor_class.__mro__:
        found = vars(base).get("__torch_function__")
        if found is not None:
            break
    if found is disabled_torch_function or tensor_class in _PLAIN_AFTER_ALL:
        return TorchFunction.NONE
    own = found is not vars(torch.Tensor)["__torch_function__"]
    return TorchFunction.OWN if own else TorchFunction.DEFAULT


_PLAIN_AFTER_ALL = frozenset({torch.nn.Parameter, torch.nn.Buffer})


def has_python_kernel_for_all(function: object) -> bool:
    """Whether a library gave an operator, or one of a packet's, one Python kernel for all tensors:
    for meta tensors and fake tensors as well, on which it does whatever it does."""
    if isinstance(function, OpOverloadPacket):
        return any(
            has_python_kernel_for_all(getattr(function, name)) for name in function.overloads()
        )
    if not isinstance(function, OpOverload):
        return False
    place, _, name = function.name().partition("::")
    if f"{place}/{name}/CompositeImplicitAutograd" in private.library_kernels:
        return True
    is_given = f"{place}/{name}/CompositeExplicitAutograd" in private.library_kernels
    return is_given and not private.has_kernel_for_key(function.name(), private.DispatchKey.Meta)


def has_meta_kernel(op: torch._ops.OpOverload) -> bool:
    """Whether PyTorch tells the shapes of an operator's results: of some it does from 2.12 or 2.13
    on."""
    return private.has_kernel_for_key(op.name(), private.DispatchKey.Meta)


def is_composite(op: torch._ops.OpOverload) -> bool:
    """Whether eager runs the operator as a composition of others. PyTorch has more compositions,
    in Python, which choose other operators (resizing becomes indexing): they do not count."""
    return private.has_kernel_for_key(op.name(), private.DispatchKey.CompositeImplicitAutograd)


def is_of_lists(op: torch._ops.OpOverload) -> bool:
    """Whether the operator does one thing to each tensor of a list: on the CPU, eager does it to
    one after the other."""
    return op._schema.name.startswith("aten::_foreach_") and (
        private.has_kernel_for_key(op.name(), _EACH)
    )


_EACH = private.DispatchKey.CompositeExplicitAutograd


def decompose(op: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> object:
    """Run a composite operator by its parts. Of those that do one thing to each tensor of a list,
    the parts raise the versions in eager; here autograd's keys lie behind us."""
    if is_of_lists(op):
        if op._schema.is_mutable:
            note_write(tuple(args[0]))
        return op._op_dk(_EACH, *args, **kwargs)
    return op._op_dk(private.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def computes_with_sizes(op: torch._ops.OpOverload) -> bool:
    """Whether the operator's parts are found by floating point arithmetic on sizes, though it has
    a kernel of its own."""
    return op._schema.name.startswith(("aten::upsample", "aten::_upsample"))


def needs_data(op: torch._ops.OpOverload) -> bool:
    """Whether the operator's result, or its result's shape, depends on the values of tensors."""
    return any(tag in op.tags for tag in _TAGS_OF_DATA)


def overloads(namespace: str, name: str) -> list[torch._ops.OpOverload]:
    """All overloads of `namespace::name`, or none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return []
    return [getattr(packet, overload) for overload in packet.overloads()]


def schemas_of(name: str) -> list[Any]:
    """The schemas of `aten::name`, those that only TorchScript knows included."""
    found: list[Any] = private.script_schemas(f"aten::{name}")
    return found


def find_overload(qualified_name: str, overload: str) -> torch._ops.OpOverload:
    """`find_overload("aten::add", "Tensor")`; raises AttributeError where there is none."""
    namespace, name = qualified_name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    found: torch._ops.OpOverload = getattr(packet, overload or "default")
    return found


def clear_autocast_cache() -> None:
    """Forget casts of weights that autocast keeps: they may hold fake tensors."""
    torch.clear_autocast_cache()


_PYTHON_KEY: Any = private.DispatchKey.Python


def is_python_dispatch_off() -> bool:
    """Whether no Python code sees operators in this thread: nor would the tracer of a capture."""
    return bool(private.is_key_excluded(_PYTHON_KEY))


set_grad_enabled: Callable[[bool], None] = private.set_grad_enabled


# Gradients of memory-efficient attention -> the places of its dropout's probability and of its two
# seeds among the arguments. What draws leaves these on the CPU, but on the device where it is
# captured for a CUDA graph; the gradients read them where they themselves are, or are not.
_SEEDS = {
    aten._scaled_dot_product_efficient_attention_backward.default: (9, 7, 8),
    aten._efficient_attention_backward.default: (11, 12, 13),
}


def direct_call(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The C function behind an overload: one Python frame less a call."""
    function: Callable[..., Any] = op._op
    places = _SEEDS.get(op)
    return function if places is None else functools.partial(_with_seeds, function, places)


def _with_seeds(function: Any, places: tuple[int, int, int], *args: Any, **kwargs: Any) -> object:
    """The call, with what a recorded forward drew from on the CPU where no capture reads it."""
    probability, *seeds = places
    if args[probability] and not torch.cuda.is_current_stream_capturing():
        given = list(args)
        for place in seeds:
            given[place] = given[place].cpu()
        return function(*given, **kwargs)
    return function(*args, **kwargs)


def _fast_calls() -> dict[object, Callable[..., object]]:
    """Python bindings that take an overload's own arguments and cost half of `torch.ops`."""
    bindings = {
        "add.Tensor sub.Tensor mul.Tensor div.Tensor relu mm bmm sigmoid tanh exp sqrt rsqrt neg "
        "abs t transpose.int permute unsqueeze addmm baddbmm where.self cat stack "
        "native_layer_norm native_group_norm convolution embedding clone detach eq.Tensor "
        "eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar gt.Tensor gt.Scalar le.Tensor "
        "le.Scalar ge.Tensor ge.Scalar maximum minimum pow.Tensor_Scalar rsub.Scalar "
        "logical_not bitwise_not masked_fill.Scalar sin cos erf select.int native_dropout": torch,
        "view expand": torch.Tensor,
        "gelu silu": torch.nn.functional,
    }
    table = {}
    for names, home in bindings.items():
        for qualified in names.split():
            name, _, overload = qualified.partition(".")
            table[getattr(getattr(aten, name), overload or "default")] = getattr(home, name)
    table[aten.gelu.default] = private.aten_gelu
    table[aten.silu.default] = private.aten_silu
    return table


FAST_CALLS: dict[Any, Callable[..., Any]] = _fast_calls()


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that tensors on one storage share."""
    return int(storage_behind(tensor)._cdata)


# Whether a call with symbolic sizes is made under `symbolic_dispatch`.
COMPOSES_IN_NUMBERS = TORCH < (2, 13)
# Functions that models call most, and that multiply no matrices: they need none of that. Dropout's
# Python kernel gives a copy where C++ gives the argument itself.
_WITHOUT_PRODUCTS = frozenset(
    (
        *("add", "sub", "mul", "truediv", "div", "neg", "pow", "rsqrt", "sqrt", "exp", "tanh"),
        *("relu", "relu_", "silu", "gelu", "sigmoid", "softmax", "dropout", "where", "mean", "sum"),
        *("batch_norm", "layer_norm", "group_norm", "rms_norm", "conv1d", "conv2d", "conv3d"),
        *("dim", "size", "to", "float", "view", "transpose", "permute", "expand", "unsqueeze"),
        *("squeeze", "flatten", "split", "chunk", "getitem", "cat", "arange", "embedding"),
    )
)


def _functions(names: frozenset[str]) -> frozenset[object]:
    places = (torch, torch.Tensor, private.C_NN, torch.nn.functional, operator, torch.ops.aten)
    found = {getattr(place, name, None) for place in places for name in names} - {None}
    packets = [packet for packet in found if isinstance(packet, OpOverloadPacket)]
    return frozenset(found).union(*[overloads("aten", p.__name__) for p in packets])


_NEED_NO_DISPATCH = _functions(_WITHOUT_PRODUCTS) if COMPOSES_IN_NUMBERS else frozenset()
_NOTHING = contextlib.nullcontext()


def symbolic_dispatch(function: object) -> Any:
    """What a call of a torch function with symbolic sizes is made under. Before 2.13 matmul is
    composed in C++ that takes sizes as numbers, and specialises them; the dispatcher's Python
    kernels do not. Those of resizing do, and are not used."""
    if not COMPOSES_IN_NUMBERS or function in _NEED_NO_DISPATCH:
        return _NOTHING
    if isinstance(function, OpOverload) and computes_with_sizes(function):
        return _NOTHING
    return private.enable_python_dispatcher()
