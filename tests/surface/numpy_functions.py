"""The sweep over NumPy: every public function of `numpy`, `numpy.linalg` and `numpy.fft`, every
method and operator of arrays, with arguments of many forms and data types.

Where NumPy gives something, the compiled call gives the same: values, types, data types, strides,
which memory is shared, and what became of the arguments; where it raises, it raises so.

    python -m tests.surface.numpy_functions                        all of it, half an hour on a core
    python -m tests.surface.numpy_functions --only linalg --kinds float32 --part 0/4
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import braze
from braze.compat.numpy.interface import SCALARS
from braze.report.explain import summarise
from tests.recorded import recorded

# What does something to the process or the disk, asks the terminal, or is no function of arrays.
LEFT_OUT = frozenset(
    "test save savez savez_compressed savetxt load loadtxt genfromtxt fromregex fromfile info "
    "show_config show_runtime get_include seterr seterrcall setbufsize set_printoptions tofile "
    "dump dumps ctypes data printoptions memmap errstate empty empty_like get_printoptions "
    "geterrcall __array_interface__ __array_struct__ __sizeof__ __dlpack__ __class__ __init__ "
    "__new__ __init_subclass__ __subclasshook__ __doc__ __setstate__ __delattr__ __setattr__ "
    "__getattribute__ __dir__ __reduce__ __reduce_ex__ __array_finalize__ __hash__ "
    "__class_getitem__ __getstate__ __iter__".split()
)
KINDS = ("float64", "int64", "bool", "float32", "complex64", "uint8", "float16", "int32")
# Arguments: a, f (Fortran's order) of 3 x 4, b of 4, s of 4 x 4, t of 2 x 3 x 4, z of none.
FORMS = (
    *("(a)", "(b)", "(s)", "(t)", "(z)", "(f)", "(a.T)", "(a[::-1])", "(a[:, ::2])", "()"),
    *("(a, a)", "(a, b)", "(s, s)", "(s, b)", "(b, b)", "(a, z)", "(z, z)", "(a, f)", "(t, b)"),
    *("(a, 1)", "(a, 0)", "(a, 2.5)", "(a, -1)", "(3, a)", "(a, True)", "(a, 0, 1)", "(a, 1, 0)"),
    *("(a, axis=0)", "(a, axis=-1)", "(t, axis=(0, 2))", "(t, axis=1, keepdims=True)"),
    *("(a, keepdims=True)", "(a, axis=None)", "(a, dtype=np.float32)", "(a, ddof=1)"),
    *("(a, a, a)", "(a > 0, a, 0)", "([a, a])", "((a, s))", "((b, b), axis=1)", "([b, 1])"),
    *("(3)", "(3, 4)", "((2, 3))", "(0, 1, 5)", "(2.5)", "([1, 2, 3])", "(np.float32(2))"),
    *("(a, (4, 3))", "(a, -1)", "(a, [0, 1])", "(a, [0, 1], axis=1)", "(a, (1, 0))", "(i, b)"),
    *("(b, i)", "(a, i, 0)", "(a, out=a)", "(a, a, out=a)", "(a, out=a, where=a > 0)", "(a, None)"),
    *(
        "(b, 'full')",
        "(a, 0, 'stable')",
        "(a, kind='stable')",
        "('ij,kj', a, a)",
        "(a, ((1, 1), (0, 2)))",
        "(a, 'C')",
        "(a, np.int16)",
    ),
    *("(b, [0.5, 0.25])", "(a, 1, axis=0)", "(b, b, b)", "(a, initial=2)", "(a, order='F')"),
)
ITEMS = (
    *("[0]", "[-1, 1]", "[1:]", "[::-1]", "[:, ::-1]", "[..., 0]", "[None]", "[:, None, 1:3]"),
    *("[[0, 2]]", "[i]", "[:, i]", "[i[:2], i[:2]]", "[a > 0]", "[()]", "[...]", "[::-2, 1]"),
    *("[0, [0, 1]]", "[[0, 1], ::-1]", "[np.int64(1)]", "[True]", "[[]]", "[5]", "[1, 1, 1]"),
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>")
OPERANDS = (
    "a {} a",
    "a {} b",
    "a {} 2",
    "3 {} a",
    "a {} 1.5",
    "s {} b",
    "z {} z",
    "a {} np.int8(3)",
)
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")


class Case(NamedTuple):
    """A program's line, of arguments of one data type."""

    line: str
    kind: str

    def __str__(self) -> str:
        return f"{self.line} of {self.kind}"


class Tally:
    """asked: lines that were compared; of those `graphs` were captured, `whole` in one graph."""

    def __init__(self) -> None:
        self.asked = self.graphs = self.whole = 0
        self.broken: Counter[str] = Counter()
        self.differences: list[str] = []


def lines() -> Iterator[str]:
    """Every line, of any kind."""
    for prefix, module in (("np", np), ("np.linalg", np.linalg), ("np.fft", np.fft)):
        for name in sorted(dir(module)):
            value = getattr(module, name)
            is_public = not name.startswith("_") and name not in LEFT_OUT
            if is_public and callable(value) and (not isinstance(value, type) or value in SCALARS):
                yield from (f"r = {prefix}.{name}{form}" for form in FORMS)
    for name in sorted(dir(np.ndarray)):
        if name in LEFT_OUT:
            continue
        for owner in ("a", "t", "z", "b"):
            if callable(getattr(np.ndarray, name)):
                rests = ("()", "(0)", "(1)", "(-1)", "(a)", "(0, 1)", "(axis=0)", "(2, 6)", "([0])")
                yield from (f"r = {owner}.{name}{rest}" for rest in rests)
            else:
                yield f"r = {owner}.{name}"
    for sign in OPERATORS:
        yield from (f"r = {form.format(sign)}" for form in OPERANDS)
        yield from (f"a {sign}= {other}; r = a" for other in ("a", "b", "2", "1.5"))
    for sign in COMPARISONS:
        yield from (f"r = {form.format(sign)}" for form in OPERANDS)
    yield from (f"r = {sign}a" for sign in ("-", "+", "~"))
    yield from (f"r = a{item}" for item in ITEMS)
    for item in ITEMS:
        yield from (f"a{item} = {value}; r = a" for value in ("1", "b[:1]", "z", "a[0, 0]", "[2]"))
    calls = ("len", "abs", "float", "int", "list", "sum", "max", "bool", "complex", "str", "tuple")
    yield from (f"r = {call}({name})" for call in calls for name in ("a", "b", "z", "a[0, 0]"))


def arguments(kind: str) -> dict[str, Any]:
    """The arrays of a data type."""
    drawn = np.random.default_rng(3)

    def array(*shape: int) -> Any:
        values = drawn.integers(-4, 6, shape) + (0.25 if kind.startswith(("f", "c")) else 0)
        values = values + drawn.integers(-3, 4, shape) * 0.5j if kind[0] == "c" else values
        with np.errstate(all="ignore"):
            return np.asarray(abs(values) if kind[0] == "u" else values).astype(kind)

    found = {name: array(*shape) for name, shape in SHAPES.items()}
    return {**found, "f": np.asfortranarray(array(3, 4)), "i": np.array([2, 0, 1])}


SHAPES = {"a": (3, 4), "b": (4,), "s": (4, 4), "t": (2, 3, 4), "z": ()}


def outcome(run: Any, given: dict[str, Any]) -> tuple[Any, str | None]:
    """(what a call gives, None), or (None, the type of what it raises)."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return run(**given), None
    except Exception as problem:
        return None, type(problem).__name__


def program(line: str) -> Any:
    """A function of the arguments that the line names."""
    names = [name for name in (*SHAPES, "f", "i") if re.search(rf"(?<![\w.'])\b{name}\b", line)]
    space: dict[str, Any] = {"np": np}
    exec(f"def run({', '.join(names)}):\n    {line}\n    return r\n", space)
    return space["run"], names


def ask(case: Case, tally: Tally) -> None:
    """Compare one line."""
    run, names = program(case.line)
    made = arguments(case.kind)
    given = {name: made[name] for name in names}
    plain = copy.deepcopy(given)
    right, raised = outcome(run, plain)
    if raised is not None and zlib.crc32(f"raises {case}".encode()) % 40:
        return
    with recorded() as journal:
        compiled = braze.compile(run, backend="eager", options={"suppress_errors": False})
    tally.asked += 1
    for _ in range(2):
        ours = copy.deepcopy(given)
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            found, error = plain_outcome(compiled, ours)
        if error != raised:
            tally.differences.append(f"{case}: raises {error}, NumPy {raised}")
            return
        problem = difference(right, found) or difference(list(plain.values()), list(ours.values()))
        problem = problem or shared(right, plain, found, ours)
        if problem:
            tally.differences.append(f"{case}: {problem}")
            return
    seen = summarise("", journal, None)
    tally.graphs += seen.graph_count > 0
    if seen.graph_count and not seen.break_count:
        tally.whole += 1
    elif seen.break_count and raised is None:
        tally.broken[re.split(r"[(\[ ]", case.line[4:])[0]] += 1


def plain_outcome(run: Any, given: dict[str, Any]) -> tuple[Any, str | None]:
    """The outcome under the settings for errors that programs have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(**given), None
    except Exception as problem:
        return None, type(problem).__name__


def difference(right: Any, found: Any) -> str | None:
    """How a result differs, in a few words."""
    if type(right) is not type(found):
        return f"a {type(found).__name__}, NumPy's is a {type(right).__name__}"
    if isinstance(right, (tuple, list)):
        if len(right) != len(found):
            return f"{len(found)} items of {len(right)}"
        return next((d for d in map(difference, right, found) if d), None)
    if isinstance(right, (np.ndarray, np.generic)):
        return _array_difference(right, found)
    if isinstance(right, (float, complex)):
        return None if np.allclose(right, found, 1e-6, equal_nan=True) else f"{found}, not {right}"
    comparable = isinstance(right, (bool, int, str, bytes, type(None), np.dtype, type))
    return None if not comparable or right == found else f"{found!r}, not {right!r}"


def _array_difference(right: Any, found: Any) -> str | None:
    if (right.dtype, right.shape) != (found.dtype, found.shape):
        return f"{found.dtype}{found.shape}, not {right.dtype}{right.shape}"
    if isinstance(right, np.ndarray):
        if right.strides != found.strides:
            return f"strides {found.strides}, not {right.strides}"
        if right.flags.writeable != found.flags.writeable:
            return f"writeable is {found.flags.writeable}"
    if right.dtype.kind not in "fc":
        return None if right.dtype.kind in "OV" or (right == found).all() else "other values"
    size = 50 * np.finfo(right.dtype).eps
    with np.errstate(all="ignore"):
        values = np.asarray(right)
        scale = np.abs(values[np.isfinite(values)]).max(initial=0)
        close = np.isclose(right, found, size, float(size * scale + size), equal_nan=True).all()
    return None if close else f"other values: {str(found)[:60]}, not {str(right)[:60]}"


def shared(right: Any, plain: dict[str, Any], found: Any, ours: dict[str, Any]) -> str | None:
    """Whether the results are the arguments, or share memory with them, as NumPy's do."""
    pairs = zip(_arrays(right), _arrays(found))
    for first, second in pairs:
        for name in plain:
            if (first is plain[name]) is not (second is ours[name]):
                return f"is {name}: {second is ours[name]}"
            memory = np.shares_memory(first, plain[name])
            if np.shares_memory(second, ours[name]) is not memory:
                return f"shares memory with {name}: {not memory}"
    return None


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in _arrays(item)]
    return [value] if isinstance(value, np.ndarray) else []


def sweep(cases: Iterable[Case]) -> Tally:
    """Compare them all."""
    tally = Tally()
    for number, case in enumerate(cases):
        ask(case, tally)
        if number % 500 == 499:
            braze.reset()
    return tally


def cases(kinds: Iterable[str] = KINDS, only: str = "") -> list[Case]:
    """Each line of each kind; `only` is a regular expression."""
    found = [Case(line, kind) for kind in kinds for line in lines()]
    return [case for case in found if re.search(only, case.line)]


def part_of(all_cases: list[Case], number: int, parts: int) -> list[Case]:
    """One of so many parts, each of which has something of everything."""
    return [c for c in all_cases if zlib.crc32(str(c).encode()) % parts == number]


def main() -> int:
    """The sweep from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    number, parts = map(int, options.part.split("/"))
    chosen = part_of(cases(options.kinds.split(","), options.only), number, parts)
    tally = sweep(chosen)
    print(*tally.differences, sep="\n")
    print(f"breaks: {dict(tally.broken.most_common(400))}")
    print(f"{len(chosen)} lines, {tally.asked} compared, {tally.graphs} with a graph, ", end="")
    print(f"{tally.whole} in one; {len(tally.differences)} differences")
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
