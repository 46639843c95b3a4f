"""The launch program of a graph, as Python source.

def call(inputs):
    if profiler._is_profiler_enabled: return profiled(inputs, globals())
    x0, x1 = inputs
    frame = take_frame()
    table, sizes, arena1 = frame
    b2 = new_float32((4, 8), (8, 1))
    fault = run(segment0, table, sizes, threads(), 0, x0, 1, b2)
    if fault: raise_fault(fault)
    op0(x1, b2, out=arena1)
    give_frame(frame)
    return [b2]

Where sizes are symbols, the frame holds an arena that is laid out for the sizes of the call:

    table, sizes, size_values, sized, = frame
    n_s0 = x0.size(0)
    numbers = (n_s0, )
    if sized.numbers != numbers: sized.lay_out(numbers)
    arena0, arena1, = sized.views

On a device the arena is of the call's stream, and the launcher makes what the kernels write
(new_tensors.py):

    stream = current_stream(0)
    kept = arenas.get(stream)
    if kept is None: kept = new_arena(arenas, stream)
    arena, arena0, = kept
    fault, b2, = launch_making(segment0, made0, table, sizes, stream, 2, arena, 0, x0)

but what has symbolic sizes is allocated before, by `result_float32` where our kernels alone write
and read it: a recording has such results in other memory than the rest. These names are methods of
an empty tensor, which costs less than a function that is told dtype and device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from braze.compat.torch.autograd_engine import note_write
from braze.compat.torch.cuda import copy_all
from braze.compat.torch.profiler import PROFILER
from braze.compat.torch.registered_ops import end_pending, pending_writes
from braze.ir.captured.compile_request import after_effects, make_writes
from braze.ir.graphs.op_effects import is_irrevocable
from braze.ir.kernels.kernel import KernelSources, Segment
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall
from braze.ir.kernels.schedule import ALIGNMENT, ExternStep, Kernel, Schedule
from braze.ir.types import Size
from braze.runtime.launch.dynamic_arena import symbols_of_arena
from braze.runtime.launch.output_strides import Names, names_with
from braze.runtime.launch.profiled_program import ASKS_PROFILER, LabelComments
from braze.runtime.launch.program_text import Allocator, LaunchProgram, NamedOperator, NewTensor
from braze.runtime.launch.result_storage import buffers_of, fresh_results, is_transposed, is_whole
from braze.runtime.launch.split_program import COMMITS, PENDING, in_parts, names_in
from braze.shapes.binding import Binding, SizeCheck, bind_symbols, python_text, raise_unmet
from braze.shapes.expr import ZERO, Expr, Symbol, as_expr, constant_value, symbols

Stateful: TypeAlias = Mapping[torch._ops.OpOverload, Callable[[ExternCall], Callable[..., Any]]]


def write_program(
    schedule: Schedule,
    sources: KernelSources,
    takes_inputs: bool = False,
    device: torch.device | None = None,
    saved_from: int = sys.maxsize,
    stateful: Stateful = MappingProxyType({}),
) -> LaunchProgram:
    """The launch program; `run`, `take_frame`, ... are added to its names by the linker.

    takes_inputs: it empties the list of its inputs, so that each can go after its last use.
    device: that of the kernels, where it is not the CPU. saved_from: results from that number on
    wait for a backward. stateful: operators of which each call of the program keeps something from
    one run to the next, and what makes the callable of one.
    """
    return _Program(schedule, sources, takes_inputs, device, saved_from, stateful).write()


def rounded(size: int) -> int:
    """Bytes of an arena: elements of every dtype fill it."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def whole(buffer: Buffer) -> BufferView:
    """The buffer as a view."""
    return BufferView(buffer, buffer.shape, buffer.stride, 0, buffer.dtype)


# --- private ---------------------------------------------------------------------------------

ARENA = "arena"  # bound to its place by the first segment, as buffers are


@dataclass(slots=True)
class _Program:
    schedule: Schedule
    sources: KernelSources
    takes_inputs: bool
    device: torch.device | None
    saved_from: int
    stateful: Stateful
    names: dict[str, Any] = field(default_factory=dict)
    tensors: dict[Buffer, str] = field(default_factory=dict)
    arena: dict[Buffer, None] = field(default_factory=dict)
    views: dict[tuple[Any, ...], str] = field(default_factory=dict)
    kept: list[BufferView] = field(default_factory=list)
    sizes: dict[Symbol, str] = field(default_factory=dict)
    known: frozenset[Symbol] = frozenset()
    bound: set[Buffer | str] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    checked: list[SizeCheck] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    fresh: frozenset[Buffer] = frozenset()
    allocates: dict[str, torch.dtype] = field(default_factory=dict)
    made: dict[str, list[NewTensor]] = field(default_factory=dict)
    meanings: dict[str, NamedOperator | Allocator] = field(default_factory=dict)
    results: list[str] | None = None
    pending: str = ""
    labels: LabelComments = field(default_factory=LabelComments)
    # What each step asks for, found once: a place in the table, a constant, an input that stays.
    places: dict[Buffer, int] = field(default_factory=dict)
    constants: frozenset[Buffer] = frozenset()
    staying: frozenset[Buffer] = frozenset()

    def write(self) -> LaunchProgram:
        schedule = self.schedule
        self.arena = {buffer: None for buffer, _ in (*schedule.slots, *schedule.sized)}
        self.places = {buffer: place for place, buffer in enumerate(self.sources.table)}
        self.constants = frozenset([buffer for buffer, _ in schedule.constants])
        self.staying = frozenset(() if self.takes_inputs else schedule.inputs)
        for number, buffer in enumerate(schedule.inputs):
            self.tensors[buffer] = f"x{number}"
        for number, (buffer, tensor) in enumerate(schedule.constants):
            self.tensors[buffer] = f"constant{number}"
            self.names[f"constant{number}"] = tensor
        head = self._bind_sizes()
        self.known = frozenset(self.sizes) if schedule.sized else frozenset()
        if self.device is not None:
            self.fresh = frozenset(fresh_results(schedule, self.saved_from))
        arena_ends = self._steps()
        for place, symbol in enumerate(self.sources.sizes):
            if place not in self.passed:
                raise ValueError(f"no input has a dimension of size {symbol}")
        results = self._finish()
        held = list(self.views.values())
        if schedule.sized:
            head += self._lay_out(held)
            held = ["sized"]
        elif self.device is not None:
            head += self._take_arena(held)
            self._leave_arena([*held], arena_ends)
            held = ["arenas"]
        unpacked = ", ".join(["table", "sizes", "size_values", *held])
        inputs = "".join(f"{self.tensors[b]}, " for b in schedule.inputs)
        inputs += "".join(f"n{number}, " for number in range(len(schedule.sizes.numbers)))
        lines = [
            f"{inputs}= inputs".strip() if inputs else "",
            "inputs.clear()" if self.takes_inputs else "",
            "frame = take_frame()",
            f"{unpacked}, = frame",
            *head,
            *self.body,
            "give_frame(frame)",
            f"return [{', '.join(results)}]",
        ]
        parts = in_parts([line for line in lines if line])
        self.names["profiler"] = PROFILER
        parts = (*parts[:-1], parts[-1].replace(":\n", f":\n{ASKS_PROFILER}", 1))
        pure = self._is_pure(results)
        given = tuple(self.kept), self.allocates, self.made, pure, self.labels.labels
        return LaunchProgram(parts, self.names, *given, meanings=self.meanings)

    def _is_pure(self, results: Sequence[str]) -> bool:
        schedule = self.schedule
        if schedule.mutations or any(isinstance(step, ExternStep) for step in schedule.steps):
            return False
        return {*results} <= {self.tensors[b] for b in self.bound if isinstance(b, Buffer)}

    def _bind_sizes(self) -> list[str]:
        """Find the values of symbols in the inputs' shapes and strides, and in the numbers."""
        numbers: list[tuple[str, Size]] = []
        for buffer in self.schedule.inputs:
            name = self.tensors[buffer]
            for method, values in (("size", buffer.shape), ("stride", buffer.stride)):
                numbers += [(f"{name}.{method}({d})", size) for d, size in enumerate(values)]
        given = self.schedule.sizes
        numbers += [(f"n{number}", size) for number, size in enumerate(given.numbers)]
        return self._bound(bind_symbols(numbers, given.derived))

    def _bound(self, bindings: Iterable[Binding]) -> list[str]:
        """Name the values of symbols, hand them to kernels, and check what has to hold of them."""
        lines = []
        for binding in bindings:
            text = binding.text(binding.place, self.sizes)
            name = self.sizes[binding.symbol] = f"n_{binding.symbol.name}"
            lines.append(f"{name} = {text}")
        given = self.schedule.sizes
        for check in given.decided(self.sizes.keys(), self.checked):
            self.checked.append(check)
            self.names["raise_unmet"] = raise_unmet
            text = check.text(self.sizes)
            lines.append(f"if not {text}: raise_unmet({check.message!r}, {check.raises})")
        for place, size in enumerate(self.sources.sizes):
            expression = as_expr(size)
            if symbols(expression) <= self.sizes.keys() and place not in self.passed:
                self.passed.add(place)
                lines.append(f"size_values[{place}] = {python_text(expression, self.sizes)}")
        return lines

    def _lay_out(self, views: Sequence[str]) -> list[str]:
        """The arena as it is for the sizes of the call, and the views into it."""
        needed = symbols_of_arena(self.schedule.sized, self.kept)
        numbers = "".join(f"{self.sizes[symbol]}, " for symbol in needed)
        lines = [f"numbers = ({numbers})", "if sized.numbers != numbers: sized.lay_out(numbers)"]
        return [*lines, f"{', '.join(views)}, = sized.views"] if views else lines

    def _take_arena(self, views: Sequence[str]) -> list[str]:
        """What a call on a device begins with: its stream, and the arena that it uses there."""
        assert self.device is not None
        lines = []
        if self.sources.segments or self.arena:
            lines.append(f"stream = current_stream({self.device.index})")
        if self.arena:
            lines.append("kept = arenas.get(stream)")
            lines.append("if kept is None: kept = new_arena(arenas, stream)")
            lines.append(f"{', '.join([ARENA, *views])}, = kept")
        return lines

    def _leave_arena(self, views: Sequence[str], at: int) -> None:
        """Let go of the arena behind its last step, at that line of the body; a later one may copy
        out of it. One that no frame keeps goes then, as do all of other streams than the default
        one. Naming it there also keeps it until then: kernels know it by its address alone, and of
        a program in parts each lets go of what no later one names."""
        if not self.schedule.slots:
            return
        names = {ARENA, *views}
        used = [n for n, line in enumerate(self.body) if n >= at and names & names_in([line])]
        at = max([at, *[n + 1 for n in used]])
        self.body.insert(at, f"del {', '.join(['kept', ARENA, *views])}")

    def _number(self, call: ExternCall, symbol: Symbol) -> None:
        """A number that a call computes, and what follows from it."""
        view, *rest = map(self._argument, call.args)
        place = f"{view}.size({rest[0]})" if rest else f"{view}.item()"
        self.body += self._bound([Binding(symbol, place, 1, ZERO)])
        self.body += self._bound(self.schedule.sizes.following(self.sizes.keys()))

    # --- steps -------------------------------------------------------------------------------

    def _steps(self) -> int:
        """Lines for all steps. How many those are until the last that uses the arena."""
        arena_ends = 0
        segments = {s.first: (number, s) for number, s in enumerate(self.sources.segments)}
        drops: dict[int, list[Buffer]] = {}
        for buffer, number in self.schedule.last_use:
            drops.setdefault(number, []).append(buffer)
        for number, step in enumerate(self.schedule.steps):
            if self.schedule.in_place and number == self.schedule.settled:
                if self.device is None:
                    self._make_results()
                self._commit()
            if isinstance(step, ExternStep):
                self.body += self.labels.before([step], False)
                self._extern(number, step)
            elif number in segments:
                run = self.schedule.steps[number : segments[number][1].last + 1]
                self.body += self.labels.before(run, self.device is None)
                self._segment(*segments[number])
            if not self.arena.keys().isdisjoint(buffers_of(step)):
                arena_ends = len(self.body)
            self._drop(drops.get(number, ()))
        return arena_ends

    def _drop(self, buffers: Iterable[Buffer]) -> None:
        dead = [
            self.tensors[b]
            for b in buffers
            if b in self.tensors and b not in self.arena and b not in self.staying
        ]
        if dead:
            self.body.append(f"del {', '.join(dead)}")

    def _segment(self, number: int, segment: Segment) -> None:
        places = self.places
        touched: dict[Buffer, None] = {}
        for step in self.schedule.steps[segment.first : segment.last + 1]:
            if isinstance(step, Kernel):  # as all of a segment are
                touched.update(dict.fromkeys(step.memory))
        pairs = []
        made: list[Buffer] = []
        if self.device is not None and self.arena and ARENA not in self.bound:
            self.bound.add(ARENA)
            pairs.append(f"{len(places)}, arena")
        for buffer in touched:
            if buffer in self.arena or buffer in self.constants or buffer in self.bound:
                continue
            if buffer not in places:
                continue
            self.bound.add(buffer)
            if buffer not in self.tensors and self._is_made_by_launcher(buffer):
                self.tensors[buffer] = f"t{len(self.tensors)}"
                made.append(buffer)
                continue
            if buffer not in self.tensors:
                self._allocate(buffer)
            pairs.append(f"{places[buffer]}, {self.tensors[buffer]}")
        if self.device is None:
            arguments = ", ".join([segment.entry, "table", "sizes", "threads()", *pairs])
            self.body.append(f"fault = run({arguments})")
            self.body.append("if fault: raise_fault(fault)")
            return
        if made:
            name = f"made{number}"
            self.made[name] = [self._new_tensor(buffer, places[buffer]) for buffer in made]
            arguments = ", ".join([segment.entry, name, "table", "sizes", "stream", *pairs])
            names = ", ".join(["fault", *[self.tensors[buffer] for buffer in made]])
            self.body.append(f"{names}, = launch_making({arguments})")
        else:
            arguments = ", ".join([segment.entry, "table", "sizes", "stream", *pairs])
            self.body.append(f"fault = launch({arguments})")
        self.body.append(f"if fault: relaunch(fault, {number}, table, sizes, stream)")

    def _is_made_by_launcher(self, buffer: Buffer) -> bool:
        """Whether the launcher makes the buffer: its sizes are known, and it is on the device."""
        if self.device is None or buffer.device.type != self.device.type:
            return False
        return all(constant_value(n) is not None for n in (*buffer.shape, *buffer.stride))

    def _new_tensor(self, buffer: Buffer, place: int) -> NewTensor:
        shape, stride = (tuple(map(int, sizes)) for sizes in (buffer.shape, buffer.stride))
        return NewTensor(place, shape, stride, buffer.dtype, buffer in self.fresh)

    def _allocate(self, buffer: Buffer) -> None:
        name = self.tensors[buffer] = f"t{len(self.tensors)}"
        shape, stride = self._sizes(buffer.shape), self._sizes(buffer.stride)
        kind = "result" if buffer in self.fresh else "new"
        make = self._allocator(kind, buffer.dtype, buffer.device)
        self.body.append(f"{name} = {make}({shape}, {stride})")

    def _allocator(self, kind: str, dtype: torch.dtype, device: torch.device) -> str:
        """The name of what allocates by shape and stride."""
        main = torch.device("cpu") if self.device is None else self.device
        name = f"{kind}_{str(dtype).split('.')[-1]}"
        if device.type != main.type:
            name = f"{name}_{device.type}"
        if name not in self.names:
            self.meanings[name] = made = Allocator(dtype, device)
            self.names[name] = made.find()
        if kind == "result":
            self.allocates[name] = dtype
        return name

    def _extern(self, number: int, step: ExternStep) -> None:
        call = step.call
        if call.computes is not None:
            self._number(call, call.computes)
            return
        op = step.out_op or step.in_place_op or call.op
        if op is pending_writes or op is end_pending:
            self._pend(call)
            return
        if self.pending:  # a kernel between the two that fails has no place in the program
            self.body.append(self.pending)
            self.pending = ""
        if is_irrevocable(op):
            self._commit()
        self.meanings[f"op{number}"] = NamedOperator(op)
        self.names[f"op{number}"] = self._callable(op, call)
        written, clones = _written_names(call.op), _Clones(self)
        arguments: list[str] = []
        for name, value in (*zip(_argument_names(call.op), call.args), *call.kwargs):
            text = clones.text(value) if name in written else self._argument(value)
            is_positional = len(arguments) < len(call.args)
            arguments.append(text if is_positional else f"{name}={text}")
        if step.out_op is not None:
            assert call.outputs[0] is not None
            arguments.append(f"out={self._view(whole(call.outputs[0]))}")
        text = f"op{number}({', '.join(arguments)})"
        if op is not call.op or not call.outputs:
            self.body.append(text)
        else:
            self._take_results(call, text, clones.names)

    def _callable(self, op: torch._ops.OpOverload, call: ExternCall) -> Callable[..., object]:
        make = self.stateful.get(op)
        return make(call) if make is not None else NamedOperator(op).find()

    def _pend(self, call: ExternCall) -> None:
        """Name what the program wrote before the operator that follows, in case that it raises."""
        self.pending = ""
        if call.op is end_pending:
            self.body.append(f"{PENDING} = ()")
            return
        self.names["make_writes"] = make_writes
        texts = [[self._argument(v) for v in values] for values in call.args]
        told = ", ".join([f"({', '.join(each)})" for each in zip(*texts, strict=True)])
        self.pending = f"{PENDING} = [{told}]"

    def _take_results(self, call: ExternCall, text: str, clones: list[str]) -> None:
        """Name what a call returned, then the clones that it wrote to, and make sure of their
        strides: kernels are compiled for those of the type."""
        targets = [
            "_" if buffer is None else self.tensors.setdefault(buffer, f"t{len(self.tensors)}")
            for buffer in call.outputs
        ]
        fresh = len(targets) - len(clones)
        returns = call.op._schema.returns
        if clones:
            self.body.append(f"returned = {text}")
            chosen = [n for n, result in enumerate(returns) if result.alias_info is None]
            text = "returned"
            if len(returns) > 1:
                text = f"[{', '.join(f'returned[{n}]' for n in chosen)}]"
        if fresh == 1 and len(returns) == 1 and str(returns[0].type) == "Tensor":
            self.body.append(f"{targets[0]} = {text}")
        elif fresh:
            self.body.append(f"{', '.join(targets[:fresh])}, = flatten({text})")
        for target, clone in zip(targets[fresh:], clones, strict=True):
            self.body.append(f"{target} = {clone}")
        for target, buffer in zip(targets, call.outputs):
            if buffer is not None:
                known = names_with(self.sizes, target, buffer.shape)
                stride, dtype = self._sizes(buffer.stride, known), self._name_of(buffer.dtype)
                check = f"{target}.stride() != {stride} or {target}.dtype is not {dtype}"
                if len(targets) > 1:  # one of several results may be undefined after all
                    check = f"{target} is not None and ({check})"
                self._check_shape(call, target, buffer)
                self.body.append(f"if {check}: {target} = restride({target}, {stride}, {dtype})")

    def _check_shape(self, call: ExternCall, target: str, buffer: Buffer) -> None:
        """Where sizes are symbols, what was found out about the operator at some sizes is compared
        with what it returns at these: kernels behind it read as many elements."""
        named = frozenset().union(*map(symbols, buffer.shape))
        if not named or not named <= self.sizes.keys():
            return
        self.names["raise_unmet"] = raise_unmet
        shape = ", ".join(map(str, buffer.shape))
        message = f"{call.op} gave another shape than its shape rule, ({shape})"
        text = f"{target} is not None and {target}.shape != {self._sizes(buffer.shape)}"
        self.body.append(f"if {text}: raise_unmet({message!r})")

    # --- the end -----------------------------------------------------------------------------

    def _commit(self) -> None:
        """What fails from here on is no longer answered by running the frame eagerly."""
        if COMMITS not in self.body:
            self.names["after_effects"] = after_effects
            self.body.append(COMMITS)

    def _make_results(self) -> list[str]:
        """Make the tensors that the caller gets, once, and before anything is written: to make a
        view may fail."""
        if self.results is None:
            self.results = []
            writes = self.schedule.mutations or self.schedule.in_place
            given = {self.tensors[buffer] for buffer in self.schedule.inputs}
            for number, view in enumerate(self.schedule.outputs):
                text = self._result(view, given)
                if writes and not text.isidentifier():
                    self.body.append(f"r{number} = {text}")
                    text = f"r{number}"
                self.results.append(text)
        return self.results

    def _finish(self) -> list[str]:
        results = self._make_results() if self.schedule.mutations else None
        targets = {buffer for buffer, _ in self.schedule.mutations}
        writes = []
        for number, (target, view) in enumerate(self.schedule.mutations):
            value = self._view(view)
            if view.buffer in targets and view.buffer is not target:
                self.body.append(f"m{number} = {value}.clone()")
                value = f"m{number}"
            writes.append((self.tensors[target], value))
        if writes:
            self._commit()
        if self.device is not None and len(writes) > 1:
            self.names["copy_all"] = copy_all
            targets_, values = (", ".join(names) for names in zip(*writes))
            self.body.append(f"copy_all([{targets_}], [{values}])")
        else:
            self.body += [f"{target}.copy_({value})" for target, value in writes]
        if self.schedule.in_place:
            names = "".join(f"{self.tensors[buffer]}, " for buffer in self.schedule.in_place)
            self.names["note_write"] = note_write
            self.body.append(f"note_write(({names}))")
        return self._make_results() if results is None else results

    def _result(self, view: BufferView, given: set[str]) -> str:
        """A tensor object that the caller has not got yet: a view of all of one is another one."""
        text = self._view(view)
        if text not in given:
            given.add(text)
            return text
        shape, stride = self._sizes(view.shape), self._sizes(view.stride)
        return f"{text}.as_strided({shape}, {stride})"

    # --- arguments ---------------------------------------------------------------------------

    def _view(self, view: BufferView) -> str:
        """The tensor of a view; of arena buffers, one that the frame holds, unless the view's sizes
        are computed by the program."""
        if view.buffer in self.arena and self._is_held(view):
            key = (view.buffer, view.shape, view.stride, view.offset, view.dtype)
            if key not in self.views:
                self.views[key] = f"arena{len(self.views)}"
                self.kept.append(view)
            return self.views[key]
        if view.buffer in self.arena:
            base = self._view(whole(view.buffer))
        else:
            if view.buffer not in self.tensors:
                self._allocate(view.buffer)
            base = self.tensors[view.buffer]
        if is_whole(view):
            return base
        if view.dtype != view.buffer.dtype:
            base = f"reinterpret({base}, {self._name_of(view.dtype)})"
        if is_transposed(view):
            return f"{base}.mT"  # in little more than half the time
        shape, stride = self._sizes(view.shape), self._sizes(view.stride)
        if constant_value(view.offset) == 0:
            return f"{base}.as_strided({shape}, {stride})"
        offset = self._size(view.offset)
        return f"{base}.as_strided({shape}, {stride}, {base}.storage_offset() + {offset})"

    def _is_held(self, view: BufferView) -> bool:
        sizes = (*view.shape, *view.stride, view.offset)
        return is_whole(view) or all(symbols(size) <= self.known for size in sizes)

    def _argument(self, argument: object) -> str:
        if isinstance(argument, BufferView):
            return f"{self._view(argument)}.item()" if argument.is_number else self._view(argument)
        if isinstance(argument, (list, tuple)):
            inside = ", ".join(map(self._argument, argument))
            return f"[{inside}]"
        if isinstance(argument, Expr):
            return self._size(argument)
        if argument is None or isinstance(argument, (bool, int, str)):
            return repr(argument)
        return self._name_of(argument)

    def _name_of(self, value: object) -> str:
        """A name for an object that has no literal."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{type(value).__name__}_{len(self.names)}"
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            name = str(value).split(".")[-1]
        self.names[name] = value
        return name

    def _sizes(self, sizes: Sequence[Size], known: Names | None = None) -> str:
        inside = "".join(f"{self._size(size, known)}, " for size in sizes)
        return f"({inside.rstrip() if len(sizes) == 1 else inside.rstrip(', ')})"

    def _size(self, size: Size, known: Names | None = None) -> str:
        constant = constant_value(size)
        names = self.sizes if known is None else known
        return str(constant) if constant is not None else python_text(as_expr(size), names)


@dataclass(slots=True)
class _Clones:
    """The copies that an operator writes to instead of its arguments, in the schema's order."""

    program: _Program
    names: list[str] = field(default_factory=list)

    def text(self, argument: object) -> str:
        """The argument's text, a clone in the place of each tensor."""
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(map(self.text, argument))}]"
        if not isinstance(argument, BufferView):
            return self.program._argument(argument)
        name = f"clone{len(self.names)}"
        self.names.append(name)
        self.program.body.append(f"{name} = {self.program._view(argument)}.clone()")
        return name


def _argument_names(op: torch._ops.OpOverload) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def _written_names(op: torch._ops.OpOverload) -> set[str]:
    return {
        argument.name
        for argument in op._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
