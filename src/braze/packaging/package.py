"""`braze.package`: capture and compile calls, and write them to a file."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch

from braze import targets
from braze.devices.cpu import DEVICE
from braze.devices.device import Linked
from braze.errors import CompilerNotFound, GraphBreakError, UserError
from braze.frozen import frozen
from braze.ir.captured.compile_request import CompileRequest, FrameValues
from braze.ir.captured.frame import CapturedFrame
from braze.ir.graphs.custom_gradient import without_custom_gradients
from braze.ir.graphs.graph import Graph, devices_of, needs_gradients
from braze.ir.graphs.joint_graph import PLAIN
from braze.ir.graphs.region import is_region, region_op
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Schedule
from braze.marks import MARKS, DimensionMark, Mark, Marked, marks_of_dimensions, put_marks
from braze.options import Options, config, resolve
from braze.packages.archive import write_archive
from braze.packages.arguments import bind, describe, rebuild, signature_data
from braze.packages.capturing import CapturedPlaces, PackagedCall
from braze.packages.changing_sizes import (
    ChangingSize,
    Choice,
    Span,
    chosen_tensors,
    further_choices,
    in_words,
    widest,
)
from braze.packages.dynamic_shapes import ExportedCall, exported_call, mark_dimensions
from braze.packages.machine import process_facts, python_abi
from braze.packages.program import program_data
from braze.packages.regions import not_yet_compiled
from braze.packages.state import StateWriter, state_of
from braze.pipeline import capture_whole, compile_graph
from braze.runtime.dispatch.argument_binding import make_binder
from braze.runtime.launch.build_cache import build
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.runtime.launch.frame_layout import lay_out_frame
from braze.runtime.launch.kernel_launcher import launcher_object
from braze.runtime.launch.launch_program import write_program
from braze.runtime.launch.profiled_program import profiled_kernels
from braze.trace import JOURNAL, CompileRecorder


@final
@frozen
class _PackagedCall:
    """One call to be packaged.

    target: the Python function, given `bound` before the arguments. structure: of the arguments, by
    parameter; tensors: their leaves; sizes: those that may change. is_exported: it is the module of
    an exported program, which does not ask whether two inputs are one tensor.
    """

    name: str
    target: Any
    bound: tuple[Any, ...]
    signature: inspect.Signature
    structure: Mapping[str, Any]
    tensors: tuple[torch.Tensor, ...]
    sizes: tuple[ChangingSize, ...]
    is_exported: bool

    def arguments(self, choice: Choice) -> inspect.BoundArguments:
        """Of an example call of these sizes. Raises UserError where there is none."""
        made = chosen_tensors(self.tensors, self.sizes, choice)
        if made is None:
            raise UserError("the example's tensors have gaps in memory, or overlap")
        given = {key: rebuild(part, made) for key, part in self.structure.items()}
        return inspect.BoundArguments(self.signature, given)


def package(
    model: object,
    args: Any = None,
    path: str | os.PathLike[str] | None = None,
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    *,
    weights: bool = True,
    options: Mapping[str, object] | None = None,
) -> Path:
    """Compile a call for inference on the CPU, and write it to a file that `braze.load_package`
    runs in another process: without the model's source, without tracing, without a compiler.

    model: a function, method or `nn.Module`; a program of `torch.export`; or methods by name,
        `package({"prefill": (f, args), "decode": (g, args, kwargs, dynamic_shapes)}, path)`, which
        share parameters and buffers.
    args, kwargs: of an example call, which is not made. Tensors are inputs of the packaged call;
        numbers, strings, flags and the structure of containers are part of it.
    dynamic_shapes: as `torch.export.export` takes it: which sizes may change, by argument. Sizes
        that `mark_dynamic` marked may, too; all others are those of the example.
    weights: False leaves out what the model's `state_dict()` has; `load_state_dict` of the loaded
        package gives it.
    options: as of `braze.compile`.

    Returns the path. Raises GraphBreakError where one graph cannot hold the call, UserError for
    what a package cannot hold, CompilerNotFound without a C++ compiler, OSError where the file
    cannot be written. A package is code: who loads it runs it.
    """
    if isinstance(model, Mapping):
        path = args if path is None else path
        given: list[Any] = [(name, *_method(name, method)) for name, method in model.items()]
    else:
        given = [("forward", model, args, kwargs, dynamic_shapes)]
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"braze.package writes to a path, not {path!r}.")
    base = resolve(config.snapshot(), fullgraph=True, dynamic=False, options=options)
    calls = [_call(*each) for each in given]
    owners = [owner for call in calls for owner in call.bound]
    state = state_of(owners, {}, bound_later=not weights)
    head, members = _written(calls, state, _Writer(_without_faults(base)))
    write_archive(Path(path), head, members)
    return Path(path)


def package_as_compiled(
    function: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: Options,
    external: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, object]]:
    """The head and the members of a package of one call that is compiled as `braze.compile` does:
    in the grad mode of this thread, and with all sizes changing where `dynamic=True`.

    external: modules and tensors by the names under which the process that loads the package gives
    them; their contents are left out. Raises as `package` does, and UserError where gradients
    are needed.
    """
    name = getattr(function, "__name__", "")
    call = _call(name if name.isidentifier() else "call", function, args, kwargs, None)
    grad = torch.is_grad_enabled()
    leaves: list[tuple[str, torch.Tensor]] = []
    for key, value in bind(call.signature, args, kwargs).items():
        describe(value, key, leaves)
    for path, leaf in leaves:
        if grad and leaf.requires_grad:
            raise UserError(
                f"{path} requires gradients, and a file holds programs for inference: compile it "
                "ahead of time under torch.no_grad()."
            )
    if options.dynamic:
        for tensor in call.tensors:
            put_marks(tensor, _all_maybe(tensor))
    state = state_of(call.bound, external, bound_later=False)
    fixed = replace(_without_faults(options), fullgraph=True, dynamic=False)
    return _written([call], state, _Writer(fixed, grad=grad, is_exporting=False))


# --- what is packaged ----------------------------------------------------------------------------


def _method(name: object, method: object) -> tuple[object, object, object, object]:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise UserError(f"braze.package: {name!r} cannot be the name of a method.")
    if not isinstance(method, tuple) or not 1 <= len(method) <= 4:
        raise UserError(
            f"braze.package: the method {name!r} is (function, args, kwargs, dynamic_shapes), of "
            f"which the last two may be missing, not {method!r}."
        )
    function, args, kwargs, dynamic_shapes = [*method, None, None, None][:4]
    return function, args, kwargs, dynamic_shapes


def _call(
    name: str, model: object, args: object, kwargs: Any, dynamic_shapes: object
) -> _PackagedCall:
    """The function behind a model, and arguments whose tensors are marked as they may change."""
    exported: ExportedCall | None = None
    if isinstance(model, torch.export.ExportedProgram):
        exported = exported_call(model, args, kwargs)
        model, args, kwargs = exported.module, exported.args, exported.kwargs
    if not isinstance(args, (tuple, list)):
        raise UserError(f"braze.package: args is a tuple of arguments, not {args!r}.")
    args, kwargs = tuple(args), dict(kwargs or {})
    target, bound, signature = _frame_of(model)
    if exported is not None:
        signature = _without_annotations(exported.signature)
    try:
        given = bind(signature, args, kwargs)
    except TypeError as error:
        raise UserError(f"braze.package: {name}(): {error}") from error
    leaves: list[tuple[str, torch.Tensor]] = []
    structure = {key: describe(value, key, leaves) for key, value in given.items()}
    tensors = [leaf for _, leaf in leaves]
    made = [tensor.detach() for tensor in tensors] if exported else _copies(tensors)
    sizes = () if exported is None else exported.sizes
    if dynamic_shapes is not None:
        arguments = {key: rebuild(part, made) for key, part in structure.items()}
        sizes = mark_dimensions(arguments, dynamic_shapes, made)
    facts = (target, bound, signature, structure, tuple(made), sizes)
    return _PackagedCall(name, *facts, exported is not None)


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the same memory, without gradients, and marked as these are. What is one tensor
    stays one."""
    copies: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach()
            put_marks(copies[id(tensor)], marks_of_dimensions(tensor))
    return [copies[id(tensor)] for tensor in tensors]


def _all_maybe(tensor: torch.Tensor) -> dict[int, Marked]:
    """The marks of a tensor all of whose sizes change where the program lets them."""
    maybe = dict.fromkeys(range(tensor.dim()), Marked(DimensionMark.MAYBE))
    return {**maybe, **marks_of_dimensions(tensor)}


def _frame_of(model: Any) -> tuple[object, tuple[object, ...], inspect.Signature]:
    """The Python function of a model, the arguments that it has already, and the signature of the
    rest."""
    target: Any
    bound: tuple[Any, ...] = ()
    if isinstance(model, torch.nn.Module):
        original = targets.original_module(model)
        target = targets.call_function(original)
        signature = inspect.signature(original.forward)
        return target, (original,), _without_annotations(signature)
    if isinstance(model, types.MethodType):
        owner: Any = model.__self__
        is_module = isinstance(owner, torch.nn.Module)
        bound = (targets.original_module(owner) if is_module else owner,)
        target = model.__func__
        if MARKS.of(target) is Mark.COMPILED:
            target = target.__wrapped__
    else:
        target = model.__wrapped__ if MARKS.of(model) is Mark.COMPILED else model
    if not targets.is_program(target):
        raise UserError(
            f"braze.package takes a Python function, a method or a module, not {model!r}."
        )
    return target, bound, _without_annotations(inspect.signature(model))


def _without_annotations(signature: inspect.Signature) -> inspect.Signature:
    empty = inspect.Parameter.empty
    return inspect.Signature([p.replace(annotation=empty) for p in signature.parameters.values()])


def _written(
    calls: Sequence[_PackagedCall], state: StateWriter, writer: _Writer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The head of a package, and its members."""
    methods = {call.name: writer.method(call, state) for call in calls}
    head = {
        "process": process_facts(),
        "launcher": writer.launcher(),
        "has_kernels": bool(writer.members),
        "methods": methods,
        "state": state.write(writer.members),
    }
    return head, writer.members


def _without_programs(graph: Graph) -> Graph:
    """The graph whose regions are compiled where they are written."""
    made: dict[int, Any] = {}
    nodes = []
    for node in graph.nodes:
        if is_region(node):
            op = region_op(node)
            programs = (not_yet_compiled,) * len(op.graphs)
            node = replace(node, op=made.setdefault(id(op), replace(op, programs=programs)))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _without_faults(options: Options) -> Options:
    """The options, so that a fault of the compiler is raised, and no weights are packed."""
    return replace(options, suppress_errors=False, packed_weights=0)


def _is_the_example(choice: Choice) -> bool:
    """Whether the call is the user's example, and not one of sizes that are tried."""
    return all(span is Span.SEVERAL for span in choice.values())


def _do_nothing() -> None:
    """In place of a call that raises, and that the user has not asked for."""


# --- writing -------------------------------------------------------------------------------------


@final
@dataclass(slots=True)
class _Writer:
    """Compiles calls; members: the files of the package. grad: the grad mode of the calls.
    is_exporting: what `torch.compiler.is_exporting()` says in them."""

    options: Options
    grad: bool = False
    is_exporting: bool = True
    members: dict[str, Any] = field(default_factory=dict)

    def method(self, call: _PackagedCall, state: StateWriter) -> dict[str, object]:
        """A call as JSON: its program, and programs for the sizes that this does not serve."""
        made: dict[Any, dict[str, Any]] = {}

        def program(choice: Choice) -> dict[str, object]:
            key = tuple(choice.items())
            if key not in made:
                made[key] = self._program(call, choice, state)
            return made[key]

        def serves(choice: Choice) -> bool:
            with suppress(GraphBreakError, UserError):
                return bool(program(choice))
            return False

        spans = widest(call.sizes, serves)
        main = program(spans)
        further, missing = [], []
        for choice in further_choices(call.sizes, spans):
            try:
                further.append(program(choice))
            except (GraphBreakError, UserError) as error:
                missing.append([in_words(choice), str(error).splitlines()[0]])
        signature = signature_data(call.signature)
        return {"signature": signature, **main, "further": further, "missing": missing}

    def _program(self, call: _PackagedCall, choice: Choice, state: StateWriter) -> dict[str, Any]:
        """The program of a call with these sizes."""
        given = call.arguments(choice)
        captured, values = self._captured(call, given, _is_the_example(choice))
        arguments = bind(call.signature, given.args, given.kwargs)
        places = CapturedPlaces(call.name, values, len(call.bound), arguments, state.add)
        data = PackagedCall(captured, places).data()
        if call.is_exported:
            data["distinct"] = []
        return {**data, **self._graph(call, captured.graph, state)}

    def _captured(
        self, call: _PackagedCall, arguments: inspect.BoundArguments, is_example: bool
    ) -> tuple[CapturedFrame, FrameValues]:
        """is_example: the call may be made, where it raises, for the exception."""
        target = call.target
        given = (*call.bound, *arguments.args)
        with torch.set_grad_enabled(self.grad):
            bound = make_binder(target)(*given, **arguments.kwargs)
            values = FrameValues(bound, (), target.__globals__)
            request = CompileRequest(target.__code__, 0, values, target)
            eagerly = functools.partial(target, *given, **arguments.kwargs)
            run = eagerly if is_example else _do_nothing
            captured = capture_whole(request, self.options, run, is_exporting=self.is_exporting)
            return captured, values

    def _graph(self, call: _PackagedCall, given: Graph, state: StateWriter) -> dict[str, object]:
        """A graph as JSON: its program and its kernels."""
        graph = _without_programs(without_custom_gradients(given))
        others = [str(device) for device in devices_of(graph) if device.type != "cpu"]
        if others:
            raise UserError(
                f"braze.package: {call.name} computes on {', '.join(others)}: packages "
                "are for the CPU."
            )
        if needs_gradients(graph):
            raise UserError(
                f"braze.package: {call.name} computes with gradients enabled: packages "
                "are for inference. Make it under torch.no_grad()."
            )
        code = call.target.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        recorder = CompileRecorder(JOURNAL, f"package {call.name}", place)
        with recorder.finishing("packaged"), torch.no_grad():
            plan, sources = self._planned(graph, recorder)
            program = write_program(plan, sources)
        layout = lay_out_frame(plan, sources, program.views)
        write = functools.partial(self._graph, call, state=state)
        return {
            "program": program_data(program, layout, state.add, write),
            "library": self._library(sources),
            "entries": [segment.entry for segment in sources.segments],
            "title": f"braze package, {call.name}",
            "kernels": [
                [kernel.name for kernel in kernels] for kernels in profiled_kernels(plan, sources)
            ],
        }

    def _planned(self, graph: Graph, recorder: CompileRecorder) -> tuple[Schedule, KernelSources]:
        """The stages of the compiler up to the sources."""
        found: list[tuple[Schedule, KernelSources]] = []

        def keep(plan: Schedule, sources: KernelSources, *_: object) -> Linked:
            found.append((plan, sources))
            return lambda _: []

        compile_graph(graph, self.options, recorder, PLAIN, replace(DEVICE, link=keep))
        return found.pop()

    def _library(self, sources: KernelSources) -> str | None:
        """The member of a graph's kernels."""
        if not sources.segments:
            return None
        toolchain = find_for_kernels(self.options)
        if isinstance(toolchain, NoCompiler):
            raise CompilerNotFound(toolchain.reason)
        return self._add(build(sources.units, toolchain, self.options).image)

    def launcher(self) -> dict[str, object] | None:
        """What calls the kernels, for processes with this Python."""
        if not self.members:
            return None
        toolchain = find_for_kernels(self.options)
        built = (
            None if isinstance(toolchain, NoCompiler) else launcher_object(toolchain, self.options)
        )
        return None if built is None else {"abi": python_abi(), "member": self._add(built.image)}

    def _add(self, image: bytes) -> str:
        for name, known in self.members.items():
            if known == image:
                return name
        name = f"objects/{len(self.members)}"
        self.members[name] = image
        return name
