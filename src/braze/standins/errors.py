"""What a torch call on stand-ins raises where the trace cannot go on; capture breaks there."""

from __future__ import annotations

from typing import final

import torch


@final
class DataDependent(Exception):
    """The call needs the values of a tensor, and stand-ins have none."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op = op
        self.reason = reason


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
