"""Functions of torch whose C++ code reads the memory of an argument, past the dispatcher.

A fake tensor has none. One of known sizes says so; one of symbolic sizes counts as empty, and gives
a null pointer, which such code follows. So these calls are refused before they are made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from braze.compat.private_names import pad_packed_sequence
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import TracedTensor

# Arguments that are read: places, names.
_Read = tuple[tuple[int, ...], frozenset[str]]
_BATCH_SIZES: _Read = ((1,), frozenset({"batch_sizes"}))
_READ: Mapping[Any, _Read] = {
    torch.gru: _BATCH_SIZES,
    torch.rnn_tanh: _BATCH_SIZES,
    torch.rnn_relu: _BATCH_SIZES,
    pad_packed_sequence: _BATCH_SIZES,
    torch.ctc_loss: ((2, 3), frozenset({"input_lengths", "target_lengths"})),
}
# Of these the second argument is read where the third is a tensor: the state of a packed sequence.
_PACKED = frozenset({torch.gru, torch.rnn_tanh, torch.rnn_relu})


def _refusing(function: Any) -> Callable[..., object]:
    """A call that raises DataDependent where memory of a fake tensor is read."""
    places, names = _READ[function]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> object:
        if function not in _PACKED or _is_packed(args, kwargs):
            read = [args[place] for place in places if place < len(args)]
            read += [value for name, value in kwargs.items() if name in names]
            if any(type(value) is TracedTensor for value in read):
                reason = f"it reads {' and '.join(sorted(names))} in C++"
                raise DataDependent(f"torch.{function.__name__}", reason)
        return function(*args, **kwargs)

    return checked


def _is_packed(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    state = args[2] if len(args) > 2 else kwargs.get("hx")
    return isinstance(state, torch.Tensor)


MEMORY_READERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {function: _refusing(function) for function in _READ if function is not None}
)
