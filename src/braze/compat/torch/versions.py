"""What differs between versions of PyTorch, where it is no more than a fact."""

from __future__ import annotations

from collections.abc import Mapping

import torch

TORCH: tuple[int, ...] = tuple(int(part) for part in torch.__version__.split(".")[:2])

# Operators whose kernels for CPUs lacked these dtypes before a version.
_LACKED: tuple[tuple[tuple[int, int], str, frozenset[torch.dtype]], ...] = (
    ((2, 13), "trace", frozenset({torch.float16, torch.bfloat16})),
)
LACKED_DTYPES: Mapping[str, frozenset[torch.dtype]] = {
    name: dtypes for version, name, dtypes in _LACKED if version > TORCH
}

# The backends that a version registers itself without a tag. Another version's registry is asked.
_PLAIN = frozenset({"cudagraphs", "inductor", "openxla", "tvm"})
_UNTAGGED: Mapping[tuple[int, ...], frozenset[str]] = {
    (2, 11): _PLAIN,
    (2, 12): _PLAIN,
    (2, 13): _PLAIN,
    (2, 14): _PLAIN,
    (2, 15): _PLAIN,
}
UNTAGGED_BACKENDS: frozenset[str] | None = _UNTAGGED.get(TORCH)

# Without what names a build: of `2.13.0+cpu`, 2.13.0.
PUBLIC_VERSION: str = str(torch.__version__).partition("+")[0]
