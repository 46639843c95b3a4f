"""The devices that Braze has kernels for, a row each."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable

import torch

from braze.devices import cpu
from braze.devices.device import Device, Linked

__all__ = ["Device", "Linked", "device_of_type", "prepare_devices"]


def device_of_type(name: str) -> Device | None:
    """The row of a type of device ("cpu"); None where there are no kernels of our own."""
    row = _DEVICES.get(name)
    return None if row is None else row()


def prepare_devices() -> None:
    """Have the devices that the process uses start what takes a while."""
    if torch.cuda.is_initialized():
        _cuda().prepare()


def _cuda() -> Device:
    # Loaded with the first graph of such a device: no other process pays for its forty modules.
    row: Device = importlib.import_module("braze.devices.cuda").DEVICE
    return row


_DEVICES = types.MappingProxyType[str, Callable[[], Device]](
    {"cpu": lambda: cpu.DEVICE, "cuda": _cuda}
)
