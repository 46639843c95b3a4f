"""States of random number generators, for what is run again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch


@final
class RandomStates:
    """The states that the generators of some devices have now. None is kept of a device whose
    stream is being recorded by the program: it may not be asked there."""

    __slots__ = ("_states",)

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._states = [(device, _state_of(device)) for device in devices if _may_be_asked(device)]

    def restore(self) -> None:
        """Give the generators these states again."""
        for device, state in self._states:
            if device.type == "cuda":
                torch.cuda.set_rng_state(state, device)
            else:
                torch.set_rng_state(state)


def _may_be_asked(device: torch.device) -> bool:
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _state_of(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
