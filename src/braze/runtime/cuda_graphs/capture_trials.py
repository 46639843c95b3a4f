"""Which library calls a CUDA graph cannot hold: each kind is tried once, and remembered.

    cumsum(float32)              recorded: nothing is remembered, and it is recorded again
    linalg_cholesky(float32)     <cache>/recordings/<key>  {"refused": "operation not permitted when
                                 stream is capturing"}

The trial is the first recording of a graph that makes the call. It fails where PyTorch waits for
the device (the driver ends the capture), and where the nodes of the call copy from or to memory of
the host, which a replay finds with other contents, or run a function of the host's. From then on
graphs with such a call are recorded in parts around it, in later processes too.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch

from braze.cache import cache_of
from braze.compat.torch.versions import TORCH
from braze.frozen import frozen
from braze.ir.kernels.loops import BufferView
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.locks import make_lock
from braze.options import Options
from braze.runtime.cuda_graphs.cuda_graph import CallRefused, NotRecordable

_ENTRIES: Final = "recordings"
# Types of nodes, and of memory, as the driver numbers them.
_COPY, _HOST = 1, 3
_HOST_MEMORY, _DEVICE_MEMORY, _UNIFIED = 1, 2, 4
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE


@final
@frozen
class NotedCall:
    """A library call in a capture, and which of the graph's nodes are its."""

    kind: str
    first: int
    last: int


@final
@dataclass(slots=True)
class CallLog:
    """The library calls of one capture. calling: the kind of the call that is being made, or ""."""

    library: Any
    device: torch.device
    calls: list[NotedCall] = field(default_factory=list)
    calling: str = ""

    def watched(self, schedule: Schedule, names: Mapping[str, Any]) -> dict[str, Any]:
        """What a launch program calls the schedule's library calls by, their calls noted."""
        found = {}
        for number, step in enumerate(schedule.steps):
            name = f"op{number}"
            if isinstance(step, ExternStep) and name in names:
                found[name] = self._watched(kind_of(step), names[name])
        return found

    def _watched(self, kind: str, kernel: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            self.calling, before = kind, self._size()
            made = kernel(*given, **named)
            self.calls.append(NotedCall(kind, before, self._size()))
            self.calling = ""
            return made

        return call

    def _size(self) -> int:
        """How many nodes the graph has that the current stream captures into."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        status, graph = ctypes.c_int(), ctypes.c_void_p()
        code = self.library.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), None, ctypes.byref(graph), None, None
        )
        return 0 if code or not graph.value else _node_count(self.library, graph.value)

    def check_host(self, graph: int) -> None:
        """Raise NotRecordable where the graph that was captured reaches to the host."""
        found = next(host_nodes(self.library, graph), None)
        if found is not None:
            number, reason = found
            self.calling = self.kind_at(number)
            raise NotRecordable(reason) from HostNode(reason)

    def kind_at(self, node: int) -> str:
        """The kind of the call that the node of that number is of, or ""."""
        return next((c.kind for c in self.calls if c.first <= node < c.last), "")


class HostNode(Exception):
    """A node of a captured graph reaches to the host."""


@final
class CaptureTrials:
    """What was remembered, in this process and on disk."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._refused: dict[tuple[str, str], str] = {}

    def refused(self, step: ExternStep, device: torch.device, options: Options) -> str:
        """Why a trial found that the call cannot be recorded on such a device, or ""."""
        kind, name = kind_of(step), _name(device)
        with self._lock:
            found = self._refused.get((kind, name))
        if found is None:
            found = _reason_in(cache_of(options).read(_ENTRIES, _key(kind, name)))
            with self._lock:
                self._refused[kind, name] = found
        return found

    def note(self, kind: str, reason: str, device: torch.device, options: Options) -> None:
        """Remember why calls of that kind cannot be recorded."""
        name = _name(device)
        text = f"{kind}: {reason}"
        with self._lock:
            self._refused[kind, name] = text
        cache_of(options).write(_ENTRIES, _key(kind, name), json.dumps({"refused": text}).encode())


TRIALS = CaptureTrials()


def kind_of(step: ExternStep) -> str:
    """What decides whether a call can be recorded: operator, dtypes, flags; no sizes or numbers."""
    call = step.call
    facts = [*_facts(call.args)]
    facts += [f"{name}={fact}" for name, value in call.kwargs for fact in _facts([value])]
    return f"{call.op}({', '.join(facts)})"


@contextmanager
def remembered_refusals(log: CallLog, device: torch.device, options: Options) -> Iterator[None]:
    """Around the making of a recording: raise CallRefused, and remember the call, where one cannot
    be recorded."""
    try:
        yield
    except NotRecordable as reason:
        if not log.calling or not is_of_captures(reason.__cause__):
            raise
        TRIALS.note(log.calling, str(reason), device, options)
        raise CallRefused(f"{log.calling}: {reason}") from reason


def is_of_captures(error: BaseException | None) -> bool:
    """Whether a call failed because it was recorded: nothing that a lack of memory, or the
    arguments, may have caused is remembered."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, HostNode) or "captur" in str(error).lower()


def host_nodes(library: Any, graph: int) -> Iterator[tuple[int, str]]:
    """The numbers of a graph's nodes, in the order of their making, that reach to the host, and
    what they do there."""
    nodes = _graph_nodes(library, graph)
    for number, node in enumerate(nodes):
        kind = ctypes.c_int()
        if library.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)):
            yield number, "the driver does not say what it does"
        elif kind.value == _HOST:
            yield number, "it runs a function on the host"
        elif kind.value == _COPY and _touches_host(library, node):
            yield number, "it copies from or to memory of the host"


# --- private ---------------------------------------------------------------------------------


class _CopySide(ctypes.Structure):
    """Half of the driver's CUDA_MEMCPY3D."""

    _fields_ = (
        ("start", ctypes.c_size_t * 4),
        ("kind", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("layout", ctypes.c_size_t * 2),
    )


class _Copy(ctypes.Structure):
    _fields_ = (("source", _CopySide), ("target", _CopySide), ("extent", ctypes.c_size_t * 3))


def _node_count(library: Any, graph: int) -> int:
    """How many nodes a graph has."""
    count = ctypes.c_size_t()
    library.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
    return count.value


def _graph_nodes(library: Any, graph: int) -> Sequence[int]:
    """The driver's nodes of a graph."""
    count = ctypes.c_size_t(_node_count(library, graph))
    nodes = (ctypes.c_void_p * max(count.value, 1))()
    library.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    return [node or 0 for node in nodes[: count.value]]


def _touches_host(library: Any, node: int) -> bool:
    copy = _Copy()
    if library.cuGraphMemcpyNodeGetParams(ctypes.c_void_p(node), ctypes.byref(copy)):
        return True
    return any(_is_on_host(library, side) for side in (copy.source, copy.target))


def _is_on_host(library: Any, side: _CopySide) -> bool:
    if side.kind != _UNIFIED:
        return bool(side.kind == _HOST_MEMORY)
    found = ctypes.c_uint()
    code = library.cuPointerGetAttribute(
        ctypes.byref(found), _MEMORY_TYPE, ctypes.c_void_p(side.device)
    )
    return bool(code or found.value != _DEVICE_MEMORY)


def _facts(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, BufferView):
            where = "" if value.buffer.device.type == "cuda" else f" on {value.buffer.device.type}"
            yield f"{str(value.dtype).removeprefix('torch.')}{where}"
        elif isinstance(value, (list, tuple)):
            # A list of tensors of one dtype is one fact, however long it is.
            yield f"[{', '.join(dict.fromkeys(_facts(value)))}]"
        elif value is None or isinstance(value, (bool, str, torch.dtype)):
            yield str(value)


def _key(kind: str, name: str) -> str:
    facts = "\n".join([kind, name, str(TORCH)])
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _reason_in(content: bytes | None) -> str:
    try:
        reason = json.loads(content)["refused"] if content is not None else ""
    except (ValueError, KeyError, TypeError):
        return ""
    return reason if isinstance(reason, str) else ""
