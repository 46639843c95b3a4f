"""Room of the device for a graph's calls, taken in one piece before the first one.

PyTorch's allocator takes memory of the device block by block, each as large as what is asked for at
that time; what comes later must fit into these, or takes more. A training step of ResNet-50 leaves
980 MiB idle between its 2,840 so, on an H200. Of one piece that is free, each takes what it needs.
"""

from __future__ import annotations

import logging

import torch

from braze.runtime.library_workspace import make_workspace

_LOG = logging.getLogger("braze.perf_hints")

# Of the piece: where as much lies idle already, that is what calls will take.
_IDLE_SHARE = 1 / 8


def take_room(size: int, device: torch.device, multiplies: bool) -> None:
    """Have the allocator hold that many bytes in one piece, free. Nothing where it holds much that
    is free, or the device has not as much. multiplies: matrix products of the library's will need
    their own memory: they get it first, or it would lie in the piece for good."""
    if not size:
        return
    with torch.cuda.device(device):
        idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        left, _ = torch.cuda.mem_get_info()
        if idle > size * _IDLE_SHARE or left < size:
            return
        if multiplies:
            make_workspace(device)
        try:
            torch.empty(size, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:  # another process was faster: calls take what they get
            say = "there is no room for %d MiB in one piece: calls take it block by block"
            _LOG.info(say, size >> 20, extra={"origin": "", "artefact": "perf_hints"})
