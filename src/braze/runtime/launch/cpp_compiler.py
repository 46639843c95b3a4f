"""The C++ compiler: which one, with which flags, and what it and the C library can do."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import final

from braze.cache import private_folder
from braze.errors import CannotBuild, CompilerExpired
from braze.frozen import frozen
from braze.options import Options
from braze.runtime.launch.compiler_process import run_compiler

COMPILERS = ("g++", "clang++", "c++")

_BASE = (
    "-shared -fPIC -x c++ -std=c++17 -march=native -fopenmp -fno-math-errno -fno-trapping-math "
    "-ffp-contract=off -fwrapv -fvisibility=hidden -w"
).split()
# -O1 with the vectoriser builds kernels in half of -O2's time; they run as fast.
_BY_COMPILER = {
    "gcc": "-O1 -ftree-loop-vectorize -fvect-cost-model=unlimited".split(),
    "clang": ["-O2"],
}
# Kernels use nothing of C++'s library: to link it takes gcc half of a kernel's build. Exceptions
# would need it.
_WITHOUT_CPP_LIBRARY = ("-nodefaultlibs", "-fno-use-linker-plugin", "-lgcc", "-lc")
# Seconds for what takes a compiler a tenth of one.
_SHORT = 60
_VECTOR_MATH = "_ZGVdN8v_tanhf"  # of glibc 2.35: all functions that the prelude declares


@final
@frozen
class Toolchain:
    """A compiler and its flags; `identity` is the part of a cache key that stands for both."""

    compiler: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    identity: str


@final
@frozen
class NoCompiler:
    """There is none for the kernels; `reason` says what was looked for, or what is refused, and
    what to do."""

    reason: str
    missing: str = "no C++ compiler"


def find_toolchain(options: Options) -> Toolchain | NoCompiler:
    """The compiler that the options ask for, or the first that is installed."""
    wanted = (options.compiler,) if options.compiler else COMPILERS
    for name in wanted:
        path = shutil.which(name)
        if path is not None:
            return _answering(path, options)
    return NoCompiler(
        f"No C++ compiler: looked for {', '.join(wanted)} on PATH. Install one (Debian, Ubuntu: "
        "apt install g++; Fedora: dnf install gcc-c++; conda: conda install gxx), or name it in "
        "the environment variable BRAZE_CXX. Until then graphs run by PyTorch's own kernels."
    )


def find_for_kernels(options: Options) -> Toolchain | NoCompiler:
    """`find_toolchain`, if it takes the flags that the options add, which only kernels are built
    with."""
    found = find_toolchain(options)
    if isinstance(found, NoCompiler) or not options.cpp_flags:
        return found
    plain, limit = find_toolchain(replace(options, cpp_flags=())), _short(options)
    try:
        refusal = _refusal(found, limit)
        if not refusal or isinstance(plain, NoCompiler) or _refusal(plain, limit):
            return found
    except CompilerExpired:
        _HANGING.add(found.compiler)
        return find_toolchain(options)
    flags = " ".join(options.cpp_flags)
    return NoCompiler(
        f"The C++ compiler does not take {flags!r}, the flags in the environment variable "
        f"BRAZE_CXXFLAGS (or the option cpp_flags): {refusal}. Correct them, or leave them out. "
        "Until then graphs run by PyTorch's own kernels.",
        "the C++ compiler does not take the flags of BRAZE_CXXFLAGS",
    )


def note_expiry(toolchain: Toolchain, options: Options) -> None:
    """After a compile that ran into the time limit: a compiler that does not build the smallest
    program either is not asked any more in this process."""
    if toolchain.compiler not in _HANGING:
        try:
            _refusal(replace(toolchain, flags=tuple(_BASE)), _short(options))
        except CompilerExpired:
            _HANGING.add(toolchain.compiler)


# --- private ---------------------------------------------------------------------------------

_SMALLEST = "#if __cplusplus < 201703L\n#error kernels are C++17\n#endif\n"


@final
class _Hanging:
    """Compilers that do not end, by path."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def add(self, path: str) -> None:
        """Take in one that did not end."""
        self._paths.add(path)


_HANGING = _Hanging()


def _short(options: Options) -> int:
    return min(_SHORT, options.build_timeout)


def _answering(path: str, options: Options) -> Toolchain | NoCompiler:
    """The compiler there, if it answers."""
    try:
        if path not in _HANGING:
            changed = os.stat(path).st_mtime_ns
            return _toolchain(path, changed, options.cpp_flags, _short(options))
    except CompilerExpired:
        _HANGING.add(path)
    except (CannotBuild, OSError) as error:
        return NoCompiler(f"The C++ compiler {path} cannot be run: {error}", "no C++ compiler")
    return NoCompiler(
        f"The C++ compiler {path} does not end, not even on the smallest program. Mend it, or name "
        "another one in the environment variable BRAZE_CXX. In this process graphs run by "
        "PyTorch's own kernels.",
        "the C++ compiler does not end",
    )


@functools.cache
def _refusal(toolchain: Toolchain, limit: float) -> str:
    """The compiler's first error about the smallest program; nothing where it builds that.
    Raises CannotBuild."""
    with tempfile.TemporaryDirectory(prefix="flags-", dir=private_folder()) as folder:
        command = [toolchain.compiler, *toolchain.flags, "-", "-o", f"{folder}/smallest.so"]
        command += toolchain.libraries
        done = run_compiler(command, _SMALLEST, limit, Path(folder))
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.strip().splitlines() if "warning: " not in line]
    return lines[0] if lines else f"it ended with status {done.returncode}"


@functools.cache
def _toolchain(path: str, changed: int, cpp_flags: tuple[str, ...], limit: float) -> Toolchain:
    """changed: when the compiler was, so that another one at the same path is asked anew."""
    version = run_compiler([path, "--version"], "", limit, Path("/"))
    kind = "clang" if "clang" in version.stdout else "gcc"
    libraries = ["-lm"]
    flags = [*_BASE, *_BY_COMPILER[kind]]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mprefer-vector-width=512")
    if kind == "gcc" and _has_vector_math():
        flags.append("-DBZ_VECTOR_MATH")
        libraries.insert(0, "-lmvec")
    if kind == "gcc" and not cpp_flags:  # others may need a library, as sanitizers do
        flags.append("-fno-exceptions")
        libraries += _WITHOUT_CPP_LIBRARY
    flags += cpp_flags
    facts = [path, version.stdout, *flags, *libraries, _processor(), sys.platform]
    identity = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    return Toolchain(path, tuple(flags), tuple(libraries), identity)


def _has_vector_math() -> bool:
    try:
        return hasattr(ctypes.CDLL("libmvec.so.1"), _VECTOR_MATH)
    except OSError:
        return False


def _processor() -> str:
    """The processor's instruction sets: -march=native means another one on another machine."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return ""
