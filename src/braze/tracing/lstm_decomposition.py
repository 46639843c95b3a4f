"""Decomposes LSTMs of symbolic sizes layer by layer.

    lstm(x, (h, c), weights, ...)    mkldnn_rnn_layer(x, *weights[0], h[0], c[0], ...) and so on

C++ asks how many elements there are before it looks for symbols, and raises.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import TracedTensor

_LSTM_KIND = 2  # of oneDNN's recurrent cells


def _as_in_lstm(
    input: object,
    hx: object,
    params: object,
    has_biases: object,
    num_layers: object,
    dropout: object,
    train: object,
    bidirectional: object,
    batch_first: object,
) -> None: ...


_LSTM = inspect.signature(_as_in_lstm)


def lstm(*args: Any, **kwargs: Any) -> tuple[object, torch.Tensor, torch.Tensor]:
    """`torch.lstm`; what is not float32 on the CPU, or has projections, is C++'s. Packed
    sequences are for no graph."""
    try:
        given = _LSTM.bind(*args, **kwargs).arguments
    except TypeError:  # it says so by name
        return torch.lstm(*args, **kwargs)
    if isinstance(given["hx"], torch.Tensor):
        raise DataDependent("torch.lstm", "the steps of a packed sequence depend on its lengths")
    x, (hidden, cell), weights = given["input"], given["hx"], given["params"]
    biases, layers, both = given["has_biases"], given["num_layers"], given["bidirectional"]
    each = 4 if biases else 2
    sides = 2 if both else 1
    tensors = (x, hidden, cell, *weights)
    if len(weights) != each * layers * sides or not _takes_layers(tensors):
        return torch.lstm(*args, **kwargs)
    first = given["batch_first"]
    rows = (x.transpose(0, 1) if first else x).contiguous()
    hidden, cell = hidden.contiguous(), cell.contiguous()
    size = hidden.place.type.shape[2]
    hiddens, cells = [], []
    for layer in range(layers):
        outputs = []
        for side in range(sides):
            at = layer * sides + side
            own = tuple(weights[at * each : (at + 1) * each])
            none = () if biases else (torch.zeros(own[0].shape[0], device="cpu"),) * 2
            options = (size, layers, biases, both, first, given["train"])
            state = (hidden[at], cell[at])
            made = aten.mkldnn_rnn_layer.default(
                rows, *own, *none, *state, side > 0, [], _LSTM_KIND, *options
            )
            outputs.append(made[0])
            hiddens.append(made[1])
            cells.append(made[2])
        rows = torch.cat(outputs, -1) if both else outputs[0]
        if given["dropout"] and given["train"] and layer < layers - 1:
            rows = torch.dropout(rows, given["dropout"], True)
    result = rows.transpose(0, 1) if first else rows
    return result, torch.stack(hiddens, 0), torch.stack(cells, 0)


def _takes_layers(tensors: tuple[Any, ...]) -> bool:
    """Whether C++ would take oneDNN's layers if sizes were numbers, and some are none."""
    if not all(type(tensor) is TracedTensor for tensor in tensors):
        return False
    x, hidden, cell, *_ = tensors
    plain = all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)
    library = torch.backends.mkldnn
    if not plain or not library.is_available() or not library.enabled:
        return False
    sizes = (*x.place.type.shape, *hidden.place.type.shape, *cell.place.type.shape)
    alike = x.dim() == hidden.dim() == cell.dim() == 3 and hidden.shape[2] == cell.shape[2]
    known = type(hidden.place.type.shape[2]) is int
    return alike and known and any(type(n) is not int for n in sizes) and all(n > 0 for n in sizes)
