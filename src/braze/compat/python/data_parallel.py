"""What DistributedDataParallel says of itself while its module runs."""

from __future__ import annotations

from typing import Any, Final

from braze.compat import private_names as private


class _Never:
    """Stands for the wrapper's class where PyTorch does not say which one is running."""

    _active_ddp_module: Any = None


# Its attribute `_active_ddp_module` is the wrapper whose module's forward is running, else None.
# A call would be dearer: every forward of a compiled graph asks.
WRAPPERS: Final[Any] = private.ddp if hasattr(private.ddp, "_active_ddp_module") else _Never

_FIRST_BYTES = 1 << 20
_BYTES = 25 << 20


def bucket_limits(wrapper: Any) -> tuple[int, ...]:
    """The sizes of a wrapper's buckets in bytes, as their gradients become ready; the last one is
    that of all further ones. Where DDP does not order its buckets by readiness, halves of them, so
    that none waits long for a parameter that another order put into it."""
    listed = tuple(getattr(wrapper, "bucket_bytes_cap_list", ()))
    most = int(getattr(wrapper, "bucket_bytes_cap", _BYTES))
    first = min(_FIRST_BYTES, most) if getattr(wrapper, "bucket_bytes_cap_default", True) else most
    limits = listed or (first, most)
    keeps_order = wrapper.find_unused_parameters and not wrapper.static_graph
    return tuple([limit // 2 for limit in limits]) if keeps_order else limits
