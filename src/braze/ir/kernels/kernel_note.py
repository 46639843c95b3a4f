"""What a report keeps of a kernel."""

from __future__ import annotations

from braze.ir.kernels.loops import bytes_of, has_known_sizes
from braze.ir.kernels.schedule import Kernel, operations_of, origins_of
from braze.kept_texts import KernelNote


def kernel_note(kernel: Kernel, graph: str) -> KernelNote:
    """The kernel's bytes, operations and lines of the program. graph: the title of its graph."""
    places = dict.fromkeys(f"{o.file}:{o.line}" for o in origins_of(kernel))
    moved, is_whole = sum(map(bytes_of, kernel.memory)), all(map(has_known_sizes, kernel.memory))
    work = operations_of(kernel)
    return KernelNote(kernel.name, moved, tuple(places), graph, work, is_whole)
