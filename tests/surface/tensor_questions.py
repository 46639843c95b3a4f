"""The questions, from `dir()` of the classes and modules: what PyTorch adds is asked by itself."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tests.aten_names import aten_names
from tests.surface.tensor_kinds import KINDS


class Question(NamedTuple):
    """text: an expression of `x`. is_of_data: an operator's call, that gives tensors."""

    text: str
    is_operator: bool


# Arguments that are tried one after the other, until eager takes them for a plain tensor.
_ARGUMENTS = ("", "0", "x", "{}", "1, 0", "0, 0", "torch.float64", "x, x", "'cpu'", "2.0", "(3, 2)")
# What ends or changes the process, waits, writes files, or asks nothing of a tensor.
_LEFT_OUT = re.compile(
    r"__init__|__new__|__init_subclass__|__subclasshook__|__setattr__|__delattr__|__class__$"
    r"|__getattribute__|__slotnames__|__torch_function__|__torch_dispatch__|__setstate__|_fix_weakref"
    r"|_make_subclass|_make_wrapper_subclass|_dtensor__new__|__weakref__|__delitem__"
    r"|set_printoptions|set_default|save$|load|compile|_dispatch_(?!key)|seed|set_num|pin_memory"
    r"|_rev_view_func|_view_func|record_stream|_nccl|empty|rand|bernoulli|multinomial|poisson"
    r"|normal|cauchy_|exponential_|geometric_|random_|uniform_|dropout|_cuda_|cuda$|xpu|ipu"
    r"|hpu|mtia|from_file|_sobol|vmap|fork|wait|import|cond$|_standard_gamma|_sample_dirichlet"
    r"|multilabel_margin_loss"  # of no rows it is what the memory held
    r"|binomial|_flash|_efficient_att|_set_|use_deterministic|set_grad|set_warn|_assert|autocast_|clear_"
)
_ASKING = re.compile(
    r"_?(is|has|get|can|use|debug|tensor|storage|dispatch_key|are|same|version|overlaps)(_|$)"
)

# Functions that are PyTorch's own affair may end the process where they are misused.
_ASKING_INNER = re.compile(
    r"_?(is|has|debug|tensor|storage|dispatch_key|are|same|overlaps|functionalize_is|maybe)(_|$)"
)


def questions() -> Iterator[Question]:
    """All of them, each once."""
    seen: set[str] = set()
    for question in (*_of_tensors(), *_of_torch(), *_of_parts(), *_HANDMADE):
        if question.text not in seen:
            seen.add(question.text)
            yield question


def _of_tensors() -> Iterator[Question]:
    for name in dir(torch.Tensor):
        if _LEFT_OUT.search(name):
            continue
        meta = getattr(torch.Tensor, name, None)
        if callable(meta) and not isinstance(meta, type):
            yield from _call(f"x.{name}")
        else:
            yield Question(f"x.{name}", False)


def _of_torch() -> Iterator[Question]:
    places = {
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch._C": torch._C,
        "torch._C._functorch": torch._C._functorch,
        "torch.overrides": torch.overrides,
        "torch.nn.functional": torch.nn.functional,
        "torch.ops.aten": torch.ops.aten,
    }
    for place, home in places.items():
        for name in aten_names() if home is torch.ops.aten else dir(home):
            inner = place.startswith("torch._C")
            asks = (_ASKING_INNER if inner else _ASKING).match(name)
            if _LEFT_OUT.search(name) or not callable(getattr(home, name, None)):
                continue
            if asks or place == "torch.nn.functional":
                tried = ("", "x") if inner else _ARGUMENTS
                yield from _call(f"{place}.{name}", "x, ", tried)


def _of_parts() -> Iterator[Question]:
    """Of what a tensor gives that is no tensor: storages, its node of autograd's graph, sizes."""
    for part in ("x.untyped_storage()", "x.storage()", "x.grad_fn", "x.shape", "x.device"):
        example = ask_eagerly(part, KINDS["non-leaf"]())
        for name in dir(type(example)):
            if LEFT_OUT_OF_OBJECTS.search(name):
                continue
            if callable(getattr(example, name, None)):
                yield from _call(f"{part}.{name}", kind="non-leaf")
            else:
                yield Question(f"{part}.{name}", False)


# Of storages and generators: what ends or shares them, asks for handles, or draws seeds.
LEFT_OUT_OF_OBJECTS = re.compile(
    r"__init__|__new__|__init_subclass__|__subclasshook__|__(set|del)(attr|item)__|__class__$"
    r"|__getattribute__|__slotnames__|from_file|_new_|_set_|cuda|hpu|pin_memory|_fix_weakref|_release|_share_"
    r"|_write_file|_weak_ref|_free_weak|_expired|__del__|_from_buffer|_byteswap|__dict__"
    r"|^new$|__enter__|__exit__|__setstate__|__reduce|graphsafe|set_state|seed$|__weakref__"
    r"|__module__|_use_count|_shared_|_with_addr|_swap_|_fd|filename"
    r"|_sequence_nr|_register_hook_dict|_to$"  # these end the process where they are misused
)


def _call(
    callee: str, first: str = "", tried: tuple[str, ...] = _ARGUMENTS, kind: str = "plain"
) -> Iterator[Question]:
    """The call with arguments that a tensor of the kind takes, or that are at least of the right
    kind."""
    refused = None
    for arguments in tried:
        text = f"{callee}({first}{arguments})"
        answer = ask_eagerly(text, KINDS[kind]())
        if not isinstance(answer, Exception):
            yield Question(text, isinstance(answer, (torch.Tensor, tuple, list)))
            return
        if refused is None and not isinstance(answer, TypeError):
            refused = Question(text, False)
    if refused is not None:
        yield refused


def ask_eagerly(text: str, x: Any) -> Any:
    """The answer, or the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return eval(text, namespace(), {"x": x})
        except Exception as error:
            return error


def namespace() -> dict[str, Any]:
    """The modules that the questions name."""
    import copy
    import gc
    import pickle
    import sys
    import weakref

    modules: dict[str, Any] = {m.__name__: m for m in (copy, gc, pickle, sys, torch, weakref)}
    return {**modules, "__builtins__": __builtins__, "__name__": "asked"}


# What is no attribute and no function of PyTorch's.
_HANDMADE = tuple(
    Question(text, False)
    for text in (
        *("id(x) == id(x)", "hash(x) == id(x)", "type(x)", "type(x).__name__", "len(x)", "dir(x)"),
        *("vars(x)", "x.__dict__", "callable(x)", "repr(x)", "str(x)", "format(x)", "bool(x)"),
        *("sys.getsizeof(x)", "x.__sizeof__()", "gc.is_tracked(x)", "weakref.ref(x)() is x"),
        *("weakref.getweakrefcount(x)", "copy.copy(x) is x", "copy.copy(x)", "pickle.dumps(x)"),
        *("hasattr(x, '__cuda_array_interface__')", "hasattr(x, 'mark')", "getattr(x, 'mark', 3)"),
        *("x.contiguous() is x", "x.data is x", "x.detach() is x", "x.to(x.dtype) is x"),
        *("x.view_as(x) is x", "x.reshape(x.shape) is x", "x.squeeze() is x", "x.real is x"),
        *("x.float() is x", "x.resolve_conj() is x", "x.resolve_neg() is x", "(+x) is x"),
        *("x.flatten() is x", "x.expand_as(x) is x", "torch.as_tensor(x) is x", "x.cpu() is x"),
        *("torch.atleast_1d(x) is x", "x.requires_grad_(x.requires_grad) is x", "x == None"),
        *("torch.nn.functional.dropout(x, 0.5, False) is x", "x.is_contiguous()", "x is None"),
        *("isinstance(x, torch.FloatTensor)", "isinstance(x, torch.cuda.FloatTensor)"),
        *("isinstance(x, torch.DoubleTensor)", "isinstance(x, torch.HalfTensor)"),
        *("isinstance(x, torch.nn.Parameter)", "isinstance(x, torch.nn.Buffer)"),
        *("isinstance(x, torch.Tensor)", "isinstance(x, torch.nn.UninitializedParameter)"),
        *("x.untyped_storage().nbytes()", "x.untyped_storage().data_ptr() == x.data_ptr()"),
        *("x.storage().dtype", "len(x.storage())", "x.untyped_storage().resizable()"),
        *("x.untyped_storage()._cdata == x._cdata", "x.untyped_storage().is_shared()"),
        *("torch._C._is_alias_of(x, x.detach())", "torch._C._is_alias_of(x, x.clone())"),
        *("x[:1].data_ptr() == x.data_ptr()", "x.add(1).data_ptr() == x.data_ptr()"),
        *("torch._C._dispatch_keys(x).raw_repr()", "str(torch._C._dispatch_keys(x))"),
        *("torch._C._storage_Use_Count(x.untyped_storage()._cdata) > 0", "x.grad is None"),
        *("x.grad_fn is None", "x._base is None", "x._base is x", "x._backward_hooks is None"),
        *("torch.typename(x)", "x.type()", "x.storage_offset()", "x._version", "x.size(0)"),
        *("torch.tensor(x).dtype", "memoryview(x.numpy()).nbytes", "x.T is x", "x.mT is x"),
        *("torch.utils.dlpack.to_dlpack(x) is None", "torch.from_dlpack(x) is x", "x.tolist()"),
        *("x.shape", "x.stride()", "x.item()", "int(x.sum())"),
    )
)
