"""Exceptions of the tracer: the operation cannot be traced, and capture breaks the graph."""

from __future__ import annotations

from typing import final

import torch


@final
class DataDependent(Exception):
    """The call needs the values of a tensor, and fake tensors have none."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op = op
        self.reason = reason


def reads_data(error: BaseException) -> bool:
    """Whether an error of C++ code says that it read the memory of a fake tensor: such code does
    not
    come by the dispatcher, where DataDependent is raised."""
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _NO_MEMORY)


_NO_MEMORY = (
    "but its data is not allocated yet",
    "Cannot access data pointer of",
    "is not supported for tensor subclasses",
)


@final
class Untraceable(Exception):
    """The call, or the tensor, has no functional form here; the message says why."""


@final
class UnknownTensor(Exception):
    """A real tensor that is no input of the trace reached an operator."""

    def __init__(self, tensor: torch.Tensor, op: str) -> None:
        super().__init__(f"{op}: a tensor that is no input of this trace reached the operator")
        self.tensor = tensor
        self.op = op
