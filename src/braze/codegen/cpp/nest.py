"""The C++ function of a kernel.

    static void k_range(char* const* p, const i64* sizes, const i64* c, i64 lo, i64 hi, int* fault)
        for each task in [lo, hi): the phases, one after the other
    static void k(char* const* p, const i64* sizes, const i64* c, int threads, int* fault)
        has the tasks split over the threads, or run by one where that is not worth it

Names depend on the kernel's form alone: kernels that differ in their buffers only have one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from braze.codegen.cpp.attention import attention_text
from braze.codegen.cpp.index import index_text, operand_text
from braze.codegen.cpp.operators import TYPES
from braze.codegen.cpp.phase import PhaseWriter
from braze.codegen.cpp.product import product_arrays, product_lines
from braze.codegen.cpp.text import indented
from braze.ir.kernels.loops import Apply, Buffer
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import HEAVY_OPERATORS, Accumulate, Kernel, Loop, Store, scalar_of
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div

_ARGUMENTS = "char* const* p, const i64* sizes, const i64* c"
_GRAIN = 32768  # cheap operations that are worth another thread: what eager takes
_PRODUCTS = 8  # multiplications of a product that cost as much as one of those


def kernel_text(kernel: Kernel, sizes: Mapping[Symbol, str]) -> str:
    """Both functions, with NAME where the kernel's name belongs."""
    if kernel.attention is not None:
        return attention_text(kernel, sizes)
    writer = _NestWriter(kernel, sizes)
    return writer.range_function() + "\n" + writer.entry_function()


@dataclass(slots=True)
class _NestWriter:
    kernel: Kernel
    sizes: Mapping[Symbol, str]
    pointers: dict[Buffer, str] = field(default_factory=dict)

    def range_function(self) -> str:
        kernel = self.kernel
        phases = PhaseWriter(kernel, self.sizes)
        body = phases.text()
        lines = [
            f"static void NAME_range({_ARGUMENTS}, i64 lo, i64 hi, int* fault) {{",
            *indented(self._parameters(), 1),
            *indented(phases.declarations, 1),
            *indented(product_arrays(kernel), 1),
            "    int bad = 0;",
            *indented(self._start(), 1),
            "    for (i64 t = lo; t < hi; ++t) {",
            *indented(self._bounds(), 2),
            *indented(product_lines(kernel, phases.pointers), 2),
            *indented(body, 2),
            *indented(self._advance(), 2),
            "    }",
            "    if (bad) __atomic_store_n(fault, bad, __ATOMIC_RELAXED);",
            "}",
        ]
        return "\n".join(lines)

    def entry_function(self) -> str:
        tasks = " * ".join(index_text(size, self.sizes) for size in self._task_sizes()) or "1L"
        lines = [
            f"static void NAME({_ARGUMENTS}, int threads, int* fault) {{",
            *indented(self._size_names(), 1),
            f"    const i64 tasks = {tasks};",
            f"    const i64 worth = {self._work()} / {_GRAIN};",
            "    bz_run(NAME_range, p, sizes, c, tasks, worth, threads, fault);",
            "}",
        ]
        return "\n".join(lines)

    # --- parts -------------------------------------------------------------------------------

    def _size_names(self) -> list[str]:
        return [f"const i64 {name} = sizes[{name[1:]}];" for name in self.sizes.values()]

    def _parameters(self) -> list[str]:
        stored = {
            s.target
            for phase in self.kernel.phases
            for s in (*phase.body, *phase.row)
            if isinstance(s, Store)
        }
        lines = self._size_names()
        for number, buffer in enumerate(self.kernel.memory):
            const = "" if buffer in stored else "const "
            ctype = f"{const}{TYPES[buffer.dtype].memory}* __restrict"
            lines.append(f"{ctype} p{number} = ({const}{TYPES[buffer.dtype].memory}*)p[{number}];")
        return lines

    def _task_loops(self) -> list[tuple[str, Expr]]:
        """Names and counts of the loops that tasks are numbered by, outermost first."""
        kernel = self.kernel
        rows = list(kernel.rows)
        found = [(s.name, as_expr(n)) for s, n in (rows[:-1] if kernel.lanes else rows)]
        if kernel.lanes:
            found.append(("block", _blocks(rows[-1], kernel.lanes)))
        cut = [(f"block{k}", _blocks(*loop)) for k, loop in enumerate(self._cut_loops())]
        # The tiles of some columns follow each other: what they multiply is packed once.
        return found + (cut if kernel.product is None else cut[::-1])

    def _task_sizes(self) -> list[Expr]:
        return [size for _, size in self._task_loops()]

    def _start(self) -> list[str]:
        loops = self._task_loops()
        if not loops:
            return []
        if len(loops) == 1:
            return [f"i64 {loops[0][0]} = lo;"]
        lines = ["i64 rest = lo;"]
        for name, size in reversed(loops[1:]):
            text = operand_text(size, self.sizes)
            lines += [f"i64 {name} = rest % {text};", f"rest /= {text};"]
        return [*lines, f"i64 {loops[0][0]} = rest;"]

    def _advance(self) -> list[str]:
        loops = self._task_loops()
        if not loops:
            return []
        text = f"++{loops[0][0]};"
        for name, size in loops[1:]:
            limit = index_text(size, self.sizes)
            text = f"if (++{name} == {limit}) {{ {name} = 0; {text} }}"
        return [text]

    def _cut_loops(self) -> list[tuple[Loop, int]]:
        if not self.kernel.chunks:
            return []
        loops = self.kernel.phases[0].loops
        return [(loop, step) for loop, step in zip(loops, self.kernel.chunks) if step]

    def _bounds(self) -> list[str]:
        """Where the block of lanes, or the chunk of each loop that is cut, begins and ends."""
        kernel = self.kernel
        if kernel.lanes:
            return self._limits("block", "first", "last", kernel.rows[-1], kernel.lanes)
        lines = []
        for number, (loop, step) in enumerate(self._cut_loops()):
            names = (f"block{number}", f"{loop[0]}_first", f"{loop[0]}_last")
            lines += self._limits(*names, loop, step)
        return lines

    def _limits(self, block: str, first: str, last: str, loop: Loop, step: int) -> list[str]:
        limit = index_text(as_expr(loop[1]), self.sizes)
        return [
            f"const i64 {first} = {block} * {step}L;",
            f"const i64 {last} = bz_min({first} + {step}L, {limit});",
        ]

    def _depth(self) -> int:
        """The multiplications for each point."""
        product = self.kernel.product
        return 0 if product is None else constant_value(product.first.shape[-1]) or 0

    def _work(self) -> str:
        """Cheap operations of the whole kernel."""
        total = as_expr(0)
        for phase in self.kernel.phases:
            count = as_expr(1)
            for _, size in (*self.kernel.rows, *phase.loops):
                count = count * size
            total = total + count * (_weight(phase.body) + self._depth() // _PRODUCTS)
        text = index_text(total, self.sizes)
        constant = constant_value(total)
        return text if constant is None else f"{constant}L"


def _blocks(loop: Loop, step: int) -> Expr:
    return floor_div(as_expr(loop[1]) + (step - 1), step)


def _weight(statements: tuple[Store | Accumulate, ...]) -> int:
    """About the cost of an element of a phase, in reads of memory."""
    heavy = 0
    for statement in statements:
        value = scalar_of(statement)
        heavy += sum(isinstance(n, Apply) and n.op in HEAVY_OPERATORS for n in walk(value))
    return 1 + 3 * heavy
