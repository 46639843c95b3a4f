"""The extension module that compares snapshots: built once a machine and Python, in the background.

Guards are generated Python until it is ready, and stay so where it cannot be built.
"""

from __future__ import annotations

import importlib.resources
import logging
import struct
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from braze.compat.torch.tensor_abi import (
    GRAD,
    GRAD_HOOKS,
    IS_LEAF,
    PLAIN_TENSOR_CLASSES,
    REQUIRES_GRAD,
    dispatch_keys,
    flagged_samples,
    implementation_offset,
    metadata_functions,
)
from braze.errors import BuildFailed, CannotBuild
from braze.ir.kernels.kernel import SourceUnit
from braze.locks import call_in_children, make_lock
from braze.options import Options, config
from braze.runtime.launch.build_cache import build
from braze.runtime.launch.cpp_compiler import NoCompiler, find_toolchain
from braze.runtime.launch.shared_objects import ObjectFile, load_extension

# (dtype, device, index of the device, layout) as libtorch numbers them, requires_grad, is_leaf.
TensorCodes = tuple[tuple[int, int, int, int], int, int]


# Implementations have more bytes than that.
_SEARCHED = 184
_DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
_PARTS = ("steps", "brought", "apart", "gradients", "native", "entrance", "module")


class NativeGuards(NamedTuple):
    """The loaded extension. snapshot: see `make` in guard_native.cpp. absent: stands in its
    arguments for "no such entry". codes_of: what it compares of a tensor beside the sizes.
    reads_tensors: whether it reads most metadata itself instead of asking libtorch. entrance: see
    `make_entrance` in guard_entrance.cpp."""

    snapshot: Callable[..., Any]
    absent: object
    codes_of: Callable[[torch.Tensor], TensorCodes | None]
    reads_tensors: bool
    entrance: Callable[..., Any]


@final
class NativeLoader:
    """Builds the extension in a thread of its own at the first question for it."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._thread: threading.Thread | None = None
        self._loaded: NativeGuards | None = None

    def ready(self) -> NativeGuards | None:
        """The extension if it is loaded; the first call starts building it."""
        if self._thread is None:
            self._start()
        return self._loaded

    @property
    def loaded(self) -> NativeGuards | None:
        """The extension if it is loaded; nothing is begun."""
        return self._loaded

    def wait(self) -> NativeGuards | None:
        """The extension, when building has ended; None where it cannot be built."""
        self.ready()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        return self._loaded

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                # No daemon: ended inside of C++ at the process's exit, it would abort the process.
                thread = threading.Thread(target=self._load, name="braze-guards")
                try:
                    thread.start()
                except RuntimeError as error:  # the process may have no more threads
                    self._say_why_not(str(error))
                self._thread = thread

    def _load(self) -> None:
        loaded = load_native_guards(config.snapshot())
        if isinstance(loaded, str):
            self._say_why_not(loaded)
        else:
            self._loaded = loaded

    def _say_why_not(self, reason: str) -> None:
        message = f"guards are checked by generated Python, several times slower: {reason}"
        extra = {"origin": "", "artefact": "perf_hints"}
        logging.getLogger("braze.perf_hints").info("%s", message, extra=extra)

    def forget_thread(self) -> None:
        """In a child, where it does not run: what it had not loaded is loaded anew."""
        if self._loaded is None:
            self._thread = None


LOADER = NativeLoader()
call_in_children(LOADER.forget_thread)


def load_native_guards(options: Options) -> NativeGuards | str:
    """The extension, built or from the cache; or why there is none."""
    built = build_extension(options)
    if isinstance(built, str):
        return built
    functions = metadata_functions()
    if functions is None:
        return "this build of PyTorch has no stable C interface to tensors"
    try:
        module = load_extension("braze_guards", built)
    except (ImportError, OSError) as failure:
        return str(failure)
    offset = implementation_offset()
    if offset is None:
        return "the layout of this build's tensor objects is unknown"
    getters = (REQUIRES_GRAD, IS_LEAF, GRAD, GRAD_HOOKS)
    module.connect(functions, *getters, PLAIN_TENSOR_CLASSES, offset)
    if not _answers_right(module.codes_of):
        return "the C interface to tensors of this build gives other answers than Python's"
    keys_offset = _keys_offset(module.bytes_of)
    if keys_offset is None:
        return "where this build's tensors keep their dispatch keys is unknown"
    module.set_keys_offset(keys_offset)
    rank_offset = _rank_offset(module.bytes_of)
    module.set_rank_offset(rank_offset)
    return NativeGuards(
        module.Snapshot, module.ABSENT, module.codes_of, rank_offset > 0, module.Entrance
    )


def build_extension(options: Options) -> ObjectFile | str:
    """The extension's shared object, or why it cannot be built."""
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        return f"Python's headers are not installed ({include}/Python.h)"
    toolchain = find_toolchain(options)
    if isinstance(toolchain, NoCompiler):
        return toolchain.reason
    text = extension_text()
    tag = f"// {sysconfig.get_config_var('SOABI')}\n"
    flags = ("-shared", "-fPIC", "-O1", "-x", "c++", f"-I{include}")
    plain = replace(toolchain, flags=flags, libraries=())
    try:
        return build((SourceUnit("guards", tag + text),), plain, options)
    except (BuildFailed, CannotBuild) as failure:
        return str(failure)


def extension_text() -> str:
    """The extension's source."""
    folder = importlib.resources.files("braze.runtime.native")
    return "\n".join(folder.joinpath(f"guard_{part}.cpp").read_text() for part in _PARTS)


# --- private ---------------------------------------------------------------------------------


def _rank_offset(bytes_of: Callable[[torch.Tensor, int, int], bytes]) -> int:
    """Where the implementations of tensors keep their rank, five sizes, five strides, the storage
    offset, the number of elements, and sixteen bytes that tell dtype, device and layout apart.

    0 where this build does not keep them so: then libtorch is asked for each.
    """
    shape = (1009, 2003, 3001)
    sample = torch.empty(shape, device="meta")
    start = bytes_of(sample, 0, _SEARCHED).find(struct.pack("4q", len(shape), *shape))
    if start <= 0 or start % 8:
        return 0
    kinds: dict[bytes, Any] = {}
    for sample in _samples():
        rank = sample.dim()
        found = struct.unpack("13q", bytes_of(sample, start, 104))
        if found[: 1 + rank] != (rank, *sample.shape):
            return 0
        facts = (sample.dtype, sample.device, sample.layout)
        if kinds.setdefault(bytes_of(sample, start + 104, 16), facts) != facts:
            return 0
        if sample.layout is torch.strided and (
            found[6 : 6 + rank] != sample.stride()
            or found[11:] != (sample.storage_offset(), sample.numel())
        ):
            return 0
    return start


def _keys_offset(bytes_of: Callable[[torch.Tensor, int, int], bytes]) -> int | None:
    """Where the implementations of tensors keep their set of dispatch keys; None where no single
    place holds those of tensors that differ in nothing else."""
    places = set(range(0, _SEARCHED, 8))
    samples = [*_samples(), *flagged_samples()]
    for sample in samples:
        found = struct.unpack(f"{_SEARCHED // 8}Q", bytes_of(sample, 0, _SEARCHED))
        keys = dispatch_keys(sample)
        places = {place for place in places if found[place // 8] == keys}
    return places.pop() if len(places) == 1 else None


def _samples() -> list[torch.Tensor]:
    """Tensors of many kinds, of each rank that is kept in line."""
    samples = [torch.empty(2, 3, dtype=dtype, device="cpu") for dtype in _DTYPES]
    samples += [torch.empty(2, 3, dtype=dtype, device="meta") for dtype in _DTYPES]
    samples += [torch.empty(tuple(range(2, 2 + rank)), device="cpu") for rank in range(6)]
    samples += [
        torch.empty(tuple(range(2, 2 + rank)), device="cpu")[..., 1:].mT for rank in range(2, 6)
    ]
    samples += [
        torch.empty(4, requires_grad=True, device="cpu"),
        torch.nn.Parameter(torch.empty(4, device="cpu")),
    ]
    matrix = torch.eye(2, device="cpu")
    return [*samples, matrix.to_sparse(), matrix.to(torch.int8).to_sparse()]


def _answers_right(codes_of: Callable[[torch.Tensor], TensorCodes | None]) -> bool:
    """Whether a few tensors are told apart as Python tells them apart."""
    leaf = torch.nn.Parameter(torch.empty(2, device="cpu"))
    with torch.enable_grad():
        samples = [
            leaf,
            leaf * 2,
            torch.empty(2, device="cpu"),
            torch.empty(2, dtype=torch.int64, device="cpu"),
            leaf.detach(),
        ]
    samples += [torch.empty(2, device="meta"), torch.empty(2, device="cpu").to_sparse()]
    numbers: dict[Any, Any] = {}
    for sample in samples:
        codes = codes_of(sample)
        if codes is None or codes[1:] != (sample.requires_grad, sample.is_leaf):
            return False
        facts = (sample.dtype, sample.device, sample.layout)
        if numbers.setdefault(codes[0], facts) != facts:
            return False
    return len(set(numbers.values())) == len(numbers)
