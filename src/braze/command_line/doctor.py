"""`python -m braze doctor`: what this machine has for Braze, what it lacks, and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias, final

import torch

from braze.api import explain
from braze.cache.inventory import entries_of
from braze.command_line.cache import trust_of
from braze.compat.private_names import gone
from braze.compat.tested_versions import untested
from braze.environment import environment_of_compilers
from braze.frozen import frozen
from braze.options import SETTINGS, config
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels

_MARKS = {"ok": " ", "note": "-", "lacks": "!"}


@final
@frozen
class Finding:
    """One line of the report.

    state: "ok", "note" (slower, or less, without it) or "lacks" (Braze does not do its work).
    remedy: how to get what is missing, or "".
    """

    subject: str
    text: str
    state: str = "ok"
    remedy: str = ""


_Check: TypeAlias = Callable[[], Iterator[Finding]]


def run_doctor(given: argparse.Namespace) -> int:
    """Print the report; 1 where something is missing that Braze needs."""
    findings = list(examine())
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{_MARKS[finding.state]} {finding.subject:{width}}  {finding.text}")
        if finding.remedy:
            print(f"  {'':{width}}  -> {finding.remedy}")
    lacking = [finding.subject for finding in findings if finding.state == "lacks"]
    print(f"Missing: {', '.join(lacking)}." if lacking else "Nothing is missing.")
    return int(bool(lacking))


def examine() -> Iterator[Finding]:
    """The findings, in the order in which they are printed."""
    for check in _CHECKS:
        yield from check()


# --- private ---------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    versions = [f"Python {platform.python_version()}", f"PyTorch {_version('torch')}"]
    versions += [f"{name} {found}" for name in ("braze", "numpy") if (found := _version(name))]
    state, new = ("note" if untested() else "ok"), "; ".join(untested())
    yield Finding("versions", ", ".join(versions), state, new)
    for row in gone():
        yield Finding("private names", str(row), "note", "a PyTorch of the tested versions has it")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _compiler() -> Iterator[Finding]:
    found = find_for_kernels(config.snapshot())
    if isinstance(found, NoCompiler):
        yield Finding("C++ compiler", found.missing, "lacks", found.reason)
        return
    yield Finding("C++ compiler", f"{found.compiler} {' '.join(found.flags)}")
    if not any(library == "-lmvec" for library in found.libraries):
        remedy = "g++ with glibc 2.35 or newer has it"
        yield Finding("vector math", "not there: exp, tanh, ... one by one", "note", remedy)


def _processor() -> Iterator[Finding]:
    vectors = torch.backends.cpu.get_cpu_capability()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    text = f"{vectors}, {cores} cores for this process, {threads} threads of PyTorch"
    remedy = "OMP_NUM_THREADS or torch.set_num_threads" if threads > (cores or threads) else ""
    yield Finding("processor", text, "note" if remedy else "ok", remedy)


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "none is seen" if built else "this PyTorch is built without CUDA"
        remedy = "see nvidia-smi and CUDA_VISIBLE_DEVICES" if built else "install a build with CUDA"
        yield Finding("GPU", why, "note", f"for a GPU: {remedy}")
        return
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        capability = f"{found.major}.{found.minor}"
        memory = f"{found.total_memory / 2**30:.0f} GiB"
        yield Finding("GPU", f"{found.name}, capability {capability}, {memory}")
    triton = _version("triton")
    if triton:
        yield Finding("Triton", triton)
    else:
        remedy = "pip install triton"
        yield Finding("Triton", "not installed: graphs on the GPU run by ATen", "lacks", remedy)


def _cache() -> Iterator[Finding]:
    options = config.snapshot()
    folder = options.cache_dir.absolute()
    if not options.cache:
        yield Finding("cache", "off", "note", "BRAZE_CACHE=1 keeps kernels for later processes")
        return
    is_trusted, why = trust_of(folder)
    if not is_trusted:
        yield Finding("cache", f"{folder}: {why}", "note", "or name another: BRAZE_CACHE_DIR")
        return
    entries = entries_of(folder)
    size = sum(entry.size for entry in entries) / 2**20
    yield Finding(
        "cache", f"{folder}, {len(entries)} entries, {size:.1f} MiB of {options.cache_size}"
    )


def _permissions() -> Iterator[Finding]:
    """Built libraries are loaded from the cache, or from the folder of temporary files."""
    folders = [str(config.snapshot().cache_dir.absolute()), tempfile.gettempdir()]
    for folder in dict.fromkeys(folders):
        if not os.path.isdir(folder):
            continue
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Finding(
                "permissions", f"{folder} cannot be written", "note", f"chmod u+rwx {folder}"
            )
        elif os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            text, remedy = f"{folder} forbids loading libraries", "mount it without noexec"
            yield Finding("permissions", text, "lacks", f"{remedy}, or BRAZE_CACHE_DIR and TMPDIR")
        else:
            yield Finding("permissions", f"{folder} can be written, and libraries loaded from it")


def _environment() -> Iterator[Finding]:
    """Variables that change what Braze does."""
    known = {setting.environment for setting in SETTINGS.values()} | {
        "BRAZE_LOGS",
        "BRAZE_LOGS_OUT",
    }
    given = environment_of_compilers("")
    for name in sorted(name for name in given if name.startswith("BRAZE_")):
        is_known = name in known
        remedy = "" if is_known else "no variable of Braze's is called so"
        state = "ok" if is_known else "note"
        yield Finding("environment", f"{name}={given[name]}", state, remedy)


def _works() -> Iterator[Finding]:
    """A function compiled, and compared with eager, on each kind of device."""
    for device in ["cpu", *["cuda"] * torch.cuda.is_available()]:
        x = torch.linspace(-3, 3, 4096, device=device).reshape(64, 64)
        began = time.perf_counter()
        try:
            found = explain(_program)(x)
        except Exception as error:  # whatever the machine does not let it do is what is asked for
            yield Finding(
                f"compile, {device}", f"{type(error).__name__}: {error}", "lacks", _REPORT
            )
            continue
        seconds = time.perf_counter() - began
        if found.fallbacks or found.left_to_eager:
            why = "; ".join([*found.fallbacks, *map(str, found.left_to_eager)])
            yield Finding(f"compile, {device}", why, "lacks", "see the lines above")
        elif not torch.allclose(found.result, _program(x), atol=1e-5):
            yield Finding(f"compile, {device}", "results differ from eager's", "lacks", _REPORT)
        else:
            yield Finding(f"compile, {device}", f"right, in {seconds:.1f} s")


_REPORT = "please report it, with all of this"


def _program(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ x.t()).softmax(-1)


_CHECKS: tuple[_Check, ...] = (
    _versions,
    _compiler,
    _processor,
    _gpu,
    _cache,
    _permissions,
    _environment,
    _works,
)
