"""Functions that differ only in sizes, as one that is given them.

    x % 640, x // 640        for a network's layers of 640, 672, 704 ... channels
becomes
    x % q0, x // q0          with q0 behind the other arguments

A network whose layers grow has hundreds of kernels that differ in nothing else, and building them
is most of a cold compile. Only small kernels share: a size known when the kernel is built spares
divisions, which large ones would feel. Whether a size is a multiple of 16 is part of the function.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from braze.frozen import frozen
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer
from braze.shapes.expr import constant_value

_LEAST_SHARING = 3  # functions
_MOST_BYTES = 32 << 20  # that a kernel which shares goes through
_MOST_SIZES = 8  # arguments added
_ALIGNMENT = 16
_LARGEST = 2**31 - 1
_SIZE = re.compile(r"(?:(?<=[%*<+] )|(?<=// ))\d+\b(?!\.)")
# Lines with numbers that are part of types, or say how the kernel is laid out.
_FIXED = ("tl.range", "tl.full", "r_shift", "r_base", "r_end", "reshape", "bitcast")


def share_functions(launches: Sequence[tuple[Launch, ...]]) -> list[tuple[Launch, ...]]:
    """The launches, of fewer functions."""
    small: dict[DeviceFunction, bool] = {}
    for launch in (launch for step in launches for launch in step):
        small[launch.function] = small.get(launch.function, True) and _is_small(launch)
    alike: dict[object, list[_PiecesOfBody]] = {}
    for function in (f for f, is_small in small.items() if is_small):
        sized = _PiecesOfBody.of(function)
        alike.setdefault(sized.key, []).append(sized)
    found: dict[DeviceFunction, _Shared] = {}
    for group in alike.values():
        if len(group) >= _LEAST_SHARING:
            found.update(_shared(group))
    return [tuple([_given(launch, found) for launch in step]) for step in launches]


# --- private ---------------------------------------------------------------------------------


@frozen
class _PiecesOfBody:
    """A function's body in pieces, and the sizes between them."""

    function: DeviceFunction
    pieces: tuple[str, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(function: DeviceFunction) -> _PiecesOfBody:
        _, body = _parted(function)
        pieces, sizes, start = [], [], 0
        for found in _sizes_in(body):
            pieces.append(body[start : found.start()])
            sizes.append(int(found[0]))
            start = found.end()
        return _PiecesOfBody(function, (*pieces, body[start:]), tuple(sizes))

    @property
    def key(self) -> object:
        """Equal for those that may share."""
        f, multiples = self.function, tuple(size % _ALIGNMENT == 0 for size in self.sizes)
        kinds = (f.signature, f.constants, f.aligned, f.warps, f.stages, f.checked)
        return (self.pieces, multiples, *kinds)


@frozen
class _Shared:
    """A function, and the sizes that it is given."""

    function: DeviceFunction
    sizes: tuple[int, ...]


def _is_small(launch: Launch) -> bool:
    total = 0
    for buffer in (a for a in launch.arguments if isinstance(a, Buffer)):
        sizes = [constant_value(size) for size in buffer.shape]
        if None in sizes:
            return False
        total += math.prod(size or 0 for size in sizes) * buffer.dtype.itemsize
    return total <= _MOST_BYTES


def _parted(function: DeviceFunction) -> tuple[str, str]:
    """The text up to the end of the function's head, and its body."""
    end = function.text.index("):\n", function.text.index(f"def {function.name}(")) + 3
    return function.text[:end], function.text[end:]


def _sizes_in(body: str) -> Iterable[re.Match[str]]:
    start = 0
    for line in body.splitlines(keepends=True):
        if not any(word in line for word in _FIXED):
            yield from _SIZE.finditer(body, start, start + len(line))
        start += len(line)


def _shared(group: Sequence[_PiecesOfBody]) -> dict[DeviceFunction, _Shared]:
    """Each function of the group -> the one for all, and its own sizes."""
    columns = list(zip(*(sized.sizes for sized in group), strict=True))
    varying = list(dict.fromkeys(c for c in columns if len(set(c)) > 1))
    if not varying or len(varying) > _MOST_SIZES or max(map(max, varying)) > _LARGEST:
        return {}
    names = {column: f"q{number}" for number, column in enumerate(varying)}
    first = group[0]
    texts = [names.get(column, str(column[0])) for column in columns]
    pairs = zip(first.pieces, [*texts, ""], strict=True)
    body = "".join(part for pair in pairs for part in pair)
    made = _with_sizes(first.function, body, varying)
    rows = zip(*varying, strict=True)
    return {s.function: _Shared(made, row) for s, row in zip(group, rows, strict=True)}


def _with_sizes(
    function: DeviceFunction, body: str, columns: Sequence[tuple[int, ...]]
) -> DeviceFunction:
    """The function with that body and an argument for each column behind those that it has."""
    head, _ = _parted(function)
    given = len(function.signature) - len(function.constants)
    start = head.index(f"def {function.name}(") + len(f"def {function.name}(")
    arguments = head[start:].removesuffix("):\n").split(", ")
    arguments[given:given] = [f"q{number}" for number in range(len(columns))]
    text = f"{head[:start]}{', '.join(arguments)}):\n{body}"
    multiples = [n for n, c in enumerate(columns, given) if all(x % _ALIGNMENT == 0 for x in c)]
    kinds = function.signature
    signature = (*kinds[:given], *["i32"] * len(columns), *kinds[given:])
    key = (text.replace(function.name, "NAME"), signature, function.constants, function.warps)
    name = f"k_{hashlib.sha256(repr(key).encode()).hexdigest()[:12]}"
    return replace(
        function,
        name=name,
        text=text.replace(function.name, name),
        signature=signature,
        aligned=(*function.aligned, *multiples),
    )


def _given(launch: Launch, found: dict[DeviceFunction, _Shared]) -> Launch:
    shared = found.get(launch.function)
    if shared is None:
        return launch
    return replace(launch, function=shared.function, arguments=(*launch.arguments, *shared.sizes))
