"""Generated source: translation units, and how their entries are called.

Every pointer that kernels touch has a place in one table a graph; an entry runs all kernels
between two extern calls, so that starting a kernel costs a C call.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, final

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer
from braze.ir.origin import Origin
from braze.ir.types import Size
from braze.kernel_times import KernelTimes
from braze.shapes.expr import Symbol


@final
@frozen
class KernelLabel:
    """How a reader knows a function of generated source.

    symbol: its name in the text, a hash of what it does. name: after its operators. launches: for
    each kernel that it serves, the kernel's name and the places in the program that it computes.
    """

    symbol: str
    name: str
    launches: tuple[tuple[str, tuple[Origin, ...]], ...]


@final
@frozen
class SourceUnit:
    """One translation unit; `text` is complete and includes nothing.

    Names and lines of the program are no part of the text: equal kernels of two programs are built
    once, under the hash of it. labels: of the functions here, for `readable`. has_local_names:
    other units know none of them.
    """

    name: str
    text: str
    labels: tuple[KernelLabel, ...] = ()
    has_local_names: bool = True

    def readable(self) -> str:
        """The text with its functions under their names, beside the lines that they compute."""
        return labelled(self.text, self.labels, "//", self.has_local_names)


@final
@frozen
class Segment:
    """`entry->run(entry, char** table, const long* sizes, int threads)` runs steps [first, last] of
    the schedule, all kernels; it returns 0, 1 for an index out of range, 2 for an integer division
    by zero. On a device the entry is a plan that its launcher reads."""

    entry: str
    first: int
    last: int


@final
@frozen
class DeviceFunction:
    """One Triton function, built once for all launches of it.

    text: complete Python source, which imports triton and defines `name`.
    signature: Triton's type of each argument in order: "*fp32", "i64", "i32", or "constexpr".
    constants: the values of the constexpr arguments, in their order.
    aligned: places of the arguments (pointers and sizes) that are divisible by 16.
    checked: it asserts that indices are in range: the device stops as eager's kernels stop it.
    """

    name: str
    text: str
    signature: tuple[str, ...]
    constants: tuple[int, ...]
    aligned: tuple[int, ...]
    warps: int
    stages: int = 1
    checked: bool = False
    label: KernelLabel | None = dataclasses.field(default=None, compare=False)

    def facts(self) -> dict[str, Any]:
        """What a build depends on, by the names of the fields: all but the label."""
        found = dataclasses.asdict(dataclasses.replace(self, label=None))
        del found["label"]
        return found

    def readable(self) -> str:
        """The text, behind the lines of the program that the function computes."""
        return labelled(self.text, () if self.label is None else (self.label,), "#", False)


# What a launch passes: the pointer of a buffer, or a size. A buffer on the CPU, of one element, in
# the place of a number ("fp64") is passed as its value.
LaunchArgument: TypeAlias = Buffer | Size


@final
@frozen(eq=False)
class Launch:
    """A device function on a grid of blocks; arguments: those that are not constexpr, in order."""

    function: DeviceFunction
    grid: tuple[Size, Size, Size]
    arguments: tuple[LaunchArgument, ...]


@final
@frozen(eq=False)
class KernelSources:
    """table: the buffer behind each place of the pointer table; sizes: the symbol (for a device:
    the expression) behind each place of the array of sizes. launches: for a device, the launches
    of each step of the schedule (none for an extern call), in the schedule's order; () for the
    CPU. A device's table leaves out what lies in the arena. title: of what is compiled, for a
    profiler. times: what calls add to, where a trace measures kernels."""

    units: tuple[SourceUnit, ...]
    segments: tuple[Segment, ...]
    table: tuple[Buffer, ...]
    sizes: tuple[Symbol, ...] | tuple[Size, ...]
    launches: tuple[tuple[Launch, ...], ...] = ()
    title: str = ""
    times: KernelTimes | None = None


def print_sources(sources: KernelSources) -> str:
    """The text of every unit and device function, each once."""
    functions = {launch.function: None for step in sources.launches for launch in step}
    return "\n".join(
        [*(unit.readable() for unit in sources.units), *(f.readable() for f in functions)]
    )


def kernel_texts(sources: KernelSources) -> Iterator[str]:
    """The text of each kernel, without what units begin and end with. Kernels of equal text stand
    together."""
    for unit in sources.units:
        for label in unit.labels:
            parts = re.findall(_FUNCTION.format(label.symbol), unit.text, re.MULTILINE | re.DOTALL)
            if parts:
                yield labelled("".join(parts), (label,), "//", unit.has_local_names)
    functions = {launch.function: None for step in sources.launches for launch in step}
    yield from (function.readable() for function in functions)


def labelled(
    text: str, labels: Iterable[KernelLabel], comment: str, names_entries: bool = True
) -> str:
    """Source with the lines of the program above each function, and the functions renamed.
    comment: what begins one. names_entries: the functions themselves, beside their parts."""
    known = {label.symbol: label for label in labels}

    def named(match: re.Match[str]) -> str:
        label = known.get(match["symbol"])
        keeps = label is None or not (names_entries or match["part"])
        return match[0] if keeps or label is None else label.name + match["part"]

    lines: list[str] = []
    shown: set[str] = set()
    for line in text.splitlines(keepends=True) if known else [text]:
        for match in _SYMBOL.finditer(line):
            if (label := known.get(match["symbol"])) and label.symbol not in shown:
                shown.add(label.symbol)
                lines += [f"{comment} {said}\n" for said in _label_lines(label)]
        lines.append(_SYMBOL.sub(named, line))
    return "".join(lines)


# --- private ---------------------------------------------------------------------------------

_SYMBOL = re.compile(r"\b(?P<symbol>k_[0-9a-f]{12})(?P<part>_\w+|)")
# A function of a kernel, or of a part of it, from its first line to the brace that ends it.
_FUNCTION = r"^\w[^\n]*\b{}(?:_\w+)?\([^\n]*\{{\n.*?^\}}\n"
_MOST_LINES = 12  # of a kernel's places in the program
_MOST_NAMES = 4  # of kernels that compute the same places


def _label_lines(label: KernelLabel) -> Iterator[str]:
    """Kernels of the same places of the program, as those of equal layers, stand together."""
    together: dict[tuple[tuple[str, int, str], ...], list[str]] = {}
    for name, origins in label.launches:
        places = dict.fromkeys((o.file, o.line, o.function) for o in origins)
        together.setdefault(tuple(places), []).append(name)
    for listed, names in together.items():
        more = f" and {len(names) - _MOST_NAMES} more kernels" if len(names) > _MOST_NAMES else ""
        yield ", ".join(names[:_MOST_NAMES]) + more
        for file, line, function in listed[:_MOST_LINES]:
            inside = f" in {function}" if function else ""
            code = linecache.getline(file, line).strip()
            yield _safe(f"    {file}:{line}{inside}{code and f': {code}'}")
        if len(listed) > _MOST_LINES:
            yield f"    and {len(listed) - _MOST_LINES} more lines"


def _safe(line: str) -> str:
    """What ends with the line in a comment of C++, too."""
    shown = "".join(c if c.isprintable() else "?" for c in line)
    return shown.replace("??/", "?? /") + (" ." if shown.rstrip().endswith("\\") else "")
