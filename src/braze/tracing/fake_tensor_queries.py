"""The table of queries to a fake tensor, and which guard keeps each answer valid.

A call that gives tensors goes through the dispatcher, and the tracer sees it. Anything else (a
truth, a number, a text, an address, an object) is answered by the fake tensor itself, so each such
question has a row here that says what keeps its answer true. A question without a row is refused,
whoever asks it: the program, or Python code of PyTorch's that runs on fake tensors. So is what ATen
has no operator for.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

from braze.compat.torch.dispatcher import schemas_of


class Kept(enum.Enum):
    """What keeps an answer true at later calls."""

    # Of an input, TENSOR_MATCH compares it (class, dtype, device, sizes, strides, layout, whether
    # it needs gradients, whether it is a leaf, dispatch keys); of another tensor it follows.
    METADATA = "metadata"
    # The tracer answers with a symbolic number, or refuses.
    DATA = "data"
    # Capture has a handler that adds the guard it needs, or breaks.
    HANDLED = "handled"
    # It is the same for all tensors of a process.
    CONSTANT = "constant"


def _rows() -> dict[str, Kept]:
    names = {
        Kept.METADATA: (
            # attributes
            "shape dtype device ndim layout requires_grad is_leaf is_cuda is_cpu is_sparse is_meta "
            "is_quantized is_mps is_xpu is_nested is_mkldnn is_vulkan is_ipu is_maia is_mtia "
            "is_xla is_sparse_csr itemsize nbytes names "
            # methods, and functions of `torch`
            "dim ndimension size stride numel nelement element_size get_device dense_dim "
            "sparse_dim is_complex is_floating_point is_signed is_contiguous is_same_size "
            "has_names is_conj is_neg is_inference _is_zerotensor is_distributed result_type "
            "type dim_order _debug_has_internal_overlap __len__ sym_size sym_stride sym_numel "
            "sym_storage_offset sym_is_contiguous _nested_tensor_size "
            "cudnn_is_acceptable _use_cudnn_ctc_loss _use_cudnn_rnn_flatten_weight "
            "_use_miopen_ctc_loss _fused_sdp_choice _has_compatible_shallow_copy_type"
        ),
        Kept.DATA: (
            "item tolist is_nonzero equal allclose __bool__ __int__ __float__ __index__ "
            "__complex__ __long__ __nonzero__ __contains__"
        ),
        Kept.HANDLED: (
            "storage_offset _is_view _version _base output_nr retains_grad grad grad_fn data "
            "register_hook retain_grad register_post_accumulate_grad_hook __hash__ __iter__ "
            "__reversed__ __deepcopy__ __class__ requires_grad_ backward as_subclass"
        ),
        Kept.CONSTANT: "__array_priority__ can_cast promote_types is_vulkan_available",
    }
    return {name: kept for kept, text in names.items() for name in text.split()}


# By the name that attributes and methods of tensors, functions of `torch` and operators of ATen
# share. sym_is_contiguous and its like are ATen's own names.
QUESTIONS: dict[str, Kept] = _rows()

# Functions of PyTorch's own modules, by module and name.
QUESTIONS_OF_MODULES: dict[str, Kept] = {
    name: kept
    for kept, text in {
        Kept.METADATA: (
            "torch.is_tensor torch.is_storage torch._tensor.dim_order torch._tensor.__len__ "
            "torch.get_device torch._C._functorch.is_batchedtensor "
            "torch._C._functorch.is_functorch_wrapped_tensor "
            "torch._C._functorch.is_gradtrackingtensor torch._C._functorch.is_functionaltensor "
            "torch._C._functorch.is_legacy_batchedtensor torch._C._functorch.maybe_get_level "
            "torch._C._functorch.maybe_get_bdim torch._is_functional_tensor "
            "torch._C._has_torch_function torch._C._has_torch_function_unary "
            "torch._C._has_torch_function_variadic torch.overrides.has_torch_function "
            "torch.nn.init._calculate_fan_in_and_fan_out torch.nn.init._calculate_correct_fan "
            "torch.overrides.is_tensor_like torch.overrides.is_tensor_method_or_property "
            "torch._C._group_tensors_by_device_and_dtype torch.nn.functional._none_or_dtype"
        ),
        Kept.DATA: "torch._tensor.__contains__",
    }.items()
    for name in text.split()
}

# Methods that ATen knows by another name; their results are tensors that went through the
# dispatcher.
_CASTS = "bfloat16 bool byte cdouble cfloat char double float half int long short cuda cpu xpu ipu"
_OTHERS = (
    "T H mT mH real imag new new_tensor index split unique stft istft lu norm to_sparse_coo "
    "unflatten align_to refine_names __getitem__ __setitem__ __torch_function__ eig symeig "
    "lstsq solve mtia asarray dsmm hsmm saddmm spmm"
)
MAKING = frozenset(f"{_CASTS} {_OTHERS}".split())
_ARITHMETIC = frozenset(
    "abs neg pos invert add sub mul div truediv floordiv mod pow matmul and or xor lshift rshift "
    "eq ne lt le gt ge".split()
)


@functools.cache
def is_operator(name: str) -> bool:
    """Whether ATen has an operator of this name that gives tensors, or nothing; Python's
    arithmetic included."""
    if name.startswith("__") and name.endswith("__"):
        plain = name[2:-2]
        if not _ARITHMETIC.isdisjoint((plain, plain[1:])):
            return True
    return any(_gives_tensors(schema) for schema in schemas_of(name))


@functools.cache
def gives_nothing(name: str) -> bool:
    """Whether ATen has an operator of this name that returns nothing."""
    return any(not schema.returns for schema in schemas_of(name))


def _gives_tensors(schema: Any) -> bool:
    return all("Tensor" in str(result.type) for result in schema.returns)


def is_known(name: str) -> bool:
    """Whether an attribute or a method of tensors, or a function of `torch` by that name, may be
    asked of a fake tensor."""
    return name in QUESTIONS or name in MAKING or is_operator(name)


# What tensors have from `object`, or what Python asks classes for: no questions to the tensor.
_PROTOCOL = frozenset(dir(object)) - {"__sizeof__", "__reduce__", "__getstate__", "__dir__"}
_OF_CLASSES = (types.BuiltinFunctionType, staticmethod, classmethod)


def unknown_names(cls: type) -> list[str]:
    """Attributes and methods of a tensor class that have no row: whatever PyTorch adds is here
    until somebody says what keeps its answer true."""
    found = []
    for name in dir(cls):
        if is_known(name) or name in _PROTOCOL:
            continue
        meta = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
        is_read = callable(meta) or isinstance(meta, (property, types.GetSetDescriptorType))
        if is_read and not isinstance(meta, _OF_CLASSES):
            found.append(name)
    return found
