"""What the log `perf_hints` says of an operator that runs by its ATen kernel."""

from __future__ import annotations

import torch

from braze.ir.kernels.loops import ExternCall

# Parts of names of operators whose library kernels are what is wanted.
_BY_LIBRARIES = ("mm", "convolution", "attention", "dot", "conv", "rnn", "lstm", "gru")


def extern_hint(call: ExternCall) -> str:
    """What the operator costs beside one that is fused; "" where nothing is to be had: it is a
    library's, or none of the program's."""
    name = call.op._schema.name.rpartition("::")[2]
    if not call.origin.line or any(part in name for part in _BY_LIBRARIES):
        return ""
    if torch.Tag.pointwise in call.op.tags:
        return f"{call.op} runs by ATen's kernel, though it is pointwise: it could be fused"
    return f"{call.op} runs by ATen's kernel: nothing is fused with it, its operands are in memory"
