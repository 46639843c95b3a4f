"""What `braze.explain(f)(*args)` returns: the compile records of one run, added up and printed."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, final

from braze.compile_records import BreakNote, CompileRecord, LeftToEager
from braze.frozen import frozen
from braze.kept_texts import KernelNote, MemoryNote, PassNote, SizeNote
from braze.report.compile_times import print_times, tabulate
from braze.report.printed_report import PrintedReport
from braze.trace import Journal


@final
@frozen
class Explanation(PrintedReport):
    """How a function was compiled for one call.

    graph_count: graphs with at least one operator; break_count: graph breaks met.
    op_count: ATen operators in all graphs; ops_per_graph: name -> how often, one item a graph.
    graphs: the calls of PyTorch that the program makes, a `torch.fx.GraphModule` a graph, of ATen
        operators where sizes are symbols; None for one that no Python code says.
    break_reasons: in the order in which they were met, each with `reason`, `user_stack`, `hint` and
        what it costs each call.
    guards: of all entries; stage_seconds: wall time by stage; compile_seconds: all of it.
    symbols: what became of sizes and numbers that may change, and where: symbols and their ranges,
        guards on them, and those that were specialised.
    unfused: what is not computed in one kernel, and why.
    memory: bytes that each graph's operators hold at most one behind the other, without what they
        allocate inside of themselves, and as planned.
    graph_break_count, out_guards, compile_times: as `torch._dynamo.explain` names break_count,
        guards, and the seconds of each compile by stage, as text.
    fallbacks: what ran otherwise than compiled; empty when all went well.
    extern_ops: operators that ran by their ATen kernels.
    paddings: sizes that recordings of calls are padded for, and why others are not.
    left_to_eager: why calls, or rests of calls, ran the program's own code.
    left_once: why calls ran eagerly whose graphs would have served no other call.
    result: what the call returned.
    """

    SECTIONS: ClassVar[str] = "braze.report.tables"

    function: str
    records: tuple[CompileRecord, ...]
    call_fallbacks: tuple[str, ...]
    result: Any
    left_to_eager: tuple[LeftToEager, ...] = ()

    @property
    def _graphs(self) -> tuple[CompileRecord, ...]:
        return tuple(r for r in self.records if r.outcome == "graph" and r.ops)

    @property
    def graph_count(self) -> int:
        return len(self._graphs)

    @property
    def break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def graph_break_count(self) -> int:
        return self.break_count

    @property
    def graphs(self) -> tuple[object, ...]:
        return tuple(record.program for record in self._graphs)

    @property
    def op_count(self) -> int:
        return sum(len(record.ops) for record in self._graphs)

    @property
    def break_reasons(self) -> tuple[BreakNote, ...]:
        return tuple(r.graph_break for r in self.records if r.graph_break is not None)

    @property
    def ops_per_graph(self) -> tuple[Counter[str], ...]:
        return tuple(Counter(record.ops) for record in self._graphs)

    @property
    def guards(self) -> tuple[str, ...]:
        return tuple(guard for record in self.records for guard in record.guards)

    @property
    def out_guards(self) -> tuple[str, ...]:
        return self.guards

    @property
    def compile_times(self) -> str:
        return print_times(tabulate(self.records, aggregate=False))

    @property
    def symbols(self) -> tuple[SizeNote, ...]:
        return tuple(note for record in self.records for note in record.sizes)

    @property
    def unfused(self) -> tuple[str, ...]:
        return tuple(text for record in self.records for text in record.unfused)

    @property
    def memory(self) -> tuple[MemoryNote, ...]:
        return tuple(note for record in self.records for note in record.memory)

    @property
    def stage_seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for record in self.records:
            for name, spent in record.stages:
                seconds[name] = seconds.get(name, 0.0) + spent
        return seconds

    @property
    def passes(self) -> tuple[PassNote, ...]:
        """The passes over graphs and schedules, in the order in which they ran."""
        return tuple(note for record in self.records for note in record.passes)

    @property
    def kernels(self) -> tuple[KernelNote, ...]:
        """The kernels of all graphs."""
        return tuple(note for record in self.records for note in record.kernels)

    @property
    def compile_seconds(self) -> float:
        return sum(record.seconds for record in self.records)

    @property
    def counters(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for record in self.records:
            total.update(record.counters)
        return total

    @property
    def fallbacks(self) -> tuple[str, ...]:
        compiled = (reason for record in self.records for reason in record.fallbacks)
        failed = (f"{r.function} was left to eager" for r in self.records if r.outcome == "failed")
        return tuple(dict.fromkeys([*compiled, *failed, *self.call_fallbacks]))

    @property
    def extern_ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op for record in self.records for op in record.extern_ops))

    @property
    def paddings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for record in self.records for text in record.paddings))

    @property
    def left_once(self) -> tuple[str, ...]:
        return tuple(record.once for record in self.records if record.once)


def summarise(function: str, journal: Journal, result: object) -> Explanation:
    """What a journal gathered while `function` was compiled and run."""
    return Explanation(
        function, journal.records(), journal.fallbacks(), result, journal.left_to_eager()
    )
