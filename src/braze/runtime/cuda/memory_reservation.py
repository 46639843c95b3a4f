"""Room of the device for a graph's calls, taken in one piece before the first one.

PyTorch's allocator takes memory of the device block by block, each as large as what is asked for at
that time; what comes later must fit into these, or takes more. A training step of ResNet-50 leaves
980 MiB idle between its 2,840 so, on an H200. Of one piece that is free, each takes what it needs.

None for what will be recorded: a recording has memory of its own, and what the first calls leave
(gradients, an optimizer's state) would hold the piece beside it. They work apart (memory_apart.py).
"""

from __future__ import annotations

import logging

import torch

from braze.runtime.cuda.cublas_workspace import Scratch, make_workspace

_LOG = logging.getLogger("braze.perf_hints")

# Of the piece: where as much lies idle already, that is what calls will take.
_IDLE_SHARE = 1 / 8


def prepare_room(size: int, device: torch.device, scratch: Scratch) -> None:
    """Have the allocator hold that many bytes in one piece, free. Nothing where it holds much that
    is free, or the device has not as much.

    scratch: what the library's products of the graph work in. That comes first: else they take it
    in the middle of a call, at a place that is free just then, and keep it.
    """
    if not (size or scratch) or torch.cuda.is_current_stream_capturing():
        return
    with torch.cuda.device(device):
        if scratch:
            make_workspace(scratch, device)
        idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        left, _ = torch.cuda.mem_get_info()
        if not size or idle > size * _IDLE_SHARE or left < size:
            return
        take_piece(size, device)


def take_piece(size: int, device: torch.device) -> None:
    """Have the allocator hold that many bytes in one piece, free, if the device has them."""
    try:
        torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:  # another process was faster: calls take what they get
        say = "there is no room for %d MiB in one piece: calls take it block by block"
        _LOG.info(say, size >> 20, extra={"origin": "", "artefact": "perf_hints"})
