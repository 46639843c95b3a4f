"""A launch program as it is written, and the tensors that its launcher makes."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.compat.torch.dispatcher import FAST_CALLS, direct_call
from braze.frozen import frozen
from braze.ir.generated_code import compile_texts, define
from braze.ir.kernels.loops import BufferView


@final
@frozen
class NewTensor:
    """One that a segment writes. place: in its table. is_result: our kernels alone write and read
    it, and the caller gets it: a recording has it in other memory."""

    place: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_result: bool


@final
@frozen
class NamedOperator:
    """What a name of a launch program stands for: the call of an operator."""

    op: torch._ops.OpOverload

    def find(self) -> Callable[..., object]:
        """The quickest callable of it."""
        return FAST_CALLS.get(self.op) or direct_call(self.op)


@final
@frozen
class Allocator:
    """What a name of a launch program stands for: it makes tensors by shape and stride."""

    dtype: torch.dtype
    device: torch.device

    def find(self) -> Callable[..., object]:
        """The function: a method of an empty tensor."""
        return torch.empty(0, dtype=self.dtype, device=self.device).new_empty_strided


@dataclass(slots=True)
class LaunchProgram:
    """parts: the source of `call`, behind that of the functions that it calls; names: what they
    refer to; views: the arena views that a frame or its sized arena holds, in the order in which
    `call` unpacks them. allocates: the names of what allocates results that a recording has in
    other memory, and the dtype of each. made: by name, what the launcher makes. is_pure: a call
    starts kernels and returns what they wrote: there is nothing that grad mode or autocast changes.
    labels: the program's, by the numbers of the comments (profiled_program.py).
    codes: of the parts, once they are compiled. meanings: of names, where it is data.
    """

    parts: tuple[str, ...]
    names: dict[str, Any]
    views: tuple[BufferView, ...]
    allocates: dict[str, torch.dtype] = field(default_factory=dict)
    made: dict[str, list[NewTensor]] = field(default_factory=dict)
    is_pure: bool = False
    labels: tuple[tuple[str, ...], ...] = ()
    codes: tuple[types.CodeType, ...] = ()
    meanings: dict[str, NamedOperator | Allocator] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All of the source."""
        return "".join(self.parts)

    def define(self, names: dict[str, object]) -> Any:
        """`call`, with these names as its globals. A recording has other names than calls that run
        as compiled: Python compiles a text once, which takes 100 ms of a thousand steps."""
        if not self.codes:
            self.codes = compile_texts(self.parts, _FILE)
        return define(self.parts, _FILE, names, self.codes)


# --- private ---------------------------------------------------------------------------------

_FILE = "<braze launch program>"
