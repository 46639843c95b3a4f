"""Which stage is wrong about a call: a crash, a wrong value or a slow-down, from capture to kernel.

The call runs by eager, then with its graphs captured and run by the operators: what differs then is
capture's or autograd's. Each graph that such a call meets goes through `find_suspect` with the very
inputs that it had. A function that is compiled already and gives something else than a fresh
compile is served by guards that hold where they should not.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from braze.compat.private_names import pytree
from braze.diagnose.graph_walk import find_suspect
from braze.diagnose.guard_script import OPERATOR, write_guard_script
from braze.diagnose.shrink import shrink
from braze.diagnose.slow_walk import SLOWER, find_slow, seconds_of
from braze.diagnose.suspect import CRASH, SLOW, WRONG, Suspect, is_same
from braze.diagnose.wrong_guard import WrongGuard
from braze.errors import InternalError
from braze.frozen import frozen
from braze.interop.backends import BACKENDS, Backend, Level
from braze.interop.fx_graph import NotExpressible
from braze.interop.repro import write_repro
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph, Node
from braze.ir.graphs.joint_graph import Role
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.origin import Origin
from braze.options import Options
from braze.runtime.autograd.rng_state import RandomStates
from braze.runtime.dispatch.shadow_check import copies_of, error_of, largest_of
from braze.trace import CompileRecorder

# Makes a compiled callable of the function or module, by a backend.
CompileBy = Callable[[Any, Backend], Callable[..., Any]]
# The guard that let an entry of the first callable serve a call that the second was compiled for.
FindWrongGuard = Callable[[Any, Any], WrongGuard | None]


@final
@frozen
class Bisection:
    """What was found. suspects: the first wrong part of each graph that is wrong, or of the whole
    call; none where all agrees. scripts: one for each that could be shrunk."""

    function: str
    suspects: tuple[Suspect, ...]
    scripts: tuple[Path, ...] = ()

    @property
    def suspect(self) -> Suspect | None:
        """The first."""
        return self.suspects[0] if self.suspects else None

    def __str__(self) -> str:
        if not self.suspects:
            return f"{self.function}: every stage computes what eager does"
        lines = [f"{self.function}: the first wrong stage is", *map(str, self.suspects)]
        return "\n".join([*lines, *(f"  shown by {path}" for path in self.scripts)])

    __repr__ = __str__


@final
class GraphExaminer:
    """An `Examine` that walks each graph at its first call, and runs it by the operators.

    scripts: whether what is wrong is shrunk and written as a script. times: whether graphs that
    are right are timed, too. count: graphs examined.
    """

    def __init__(self, options: Options, scripts: bool = False, times: bool = False) -> None:
        self.options, self.scripts, self.times = options, scripts, times
        self.suspects: list[Suspect] = []
        self.written: list[Path] = []
        self.count = 0

    def backend(self) -> Backend:
        """The backend that hands graphs over."""
        return Backend("bisect", Level.EXAMINED, examine=self.examine)

    def examine(self, graph: Graph, recorder: CompileRecorder, role: Role) -> GraphCallable:
        """What runs in the graph's place."""
        run = compile_graph_runner(graph, role.takes_inputs)
        seen: list[bool] = []

        def call(inputs: Sequence[Any]) -> Sequence[Any]:
            if not seen:
                seen.append(True)
                self._walk(graph, copies_of(inputs))
            return run(inputs)

        return call

    def _walk(self, graph: Graph, inputs: Sequence[object]) -> None:
        self.count += 1
        found = find_suspect(graph, self.options, inputs)
        if found is None and self.times and (slow := find_slow(graph, self.options, inputs)):
            self.suspects.append(slow)
        if found is None:
            return
        suspect = found  # for the closure's type

        def fails(part: Graph, values: Sequence[object]) -> bool:
            return is_same(suspect, find_suspect(part, self.options, values, suspect.stage))

        places = {(o.file, o.line) for o in found.origins}
        first = [n for n in graph.nodes if (n.origin.file, n.origin.line) in places]
        small, values = shrink(graph, inputs, fails, first)
        self.suspects.append(_of_nodes(found, small.nodes))
        if self.scripts:
            try:
                self.written.append(write_repro(small, values, str(found)))
            except (NotExpressible, OSError) as problem:
                self.suspects[-1] = _with_detail(self.suspects[-1], f"no script: {problem}")


def bisect_call(
    target: object,
    compile_by: CompileBy,
    options: Options,
    compiled: Callable[..., object] | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    scripts: bool = True,
    times: bool = False,
    find_wrong: FindWrongGuard | None = None,
) -> Bisection:
    """The first wrong stage of a call. target: the original; compiled: what it was compiled to
    before, if it was, whose entries are asked at the end; find_wrong: finds the guard that one of
    them has wrong. times: graphs that are right are timed, and so is the call."""
    name = getattr(target, "__qualname__", type(target).__qualname__)
    examiner = GraphExaminer(options, scripts, times)
    call = _Call(args, kwargs)
    expected = call.run(target)
    mine = None if compiled is None else call.run_itself(compiled)
    try:
        examined = compile_by(call.subject(target), examiner.backend())
        found = call.run_itself(examined)
    except InternalError as failure:
        origins = (failure.origin,) if isinstance(failure.origin, Origin) else ()
        text = str(failure.cause)
        return Bisection(name, (Suspect(CRASH, failure.stage, "", text, origins),))
    suspects = [*examiner.suspects]
    if not suspects and (differs := call.difference(found, expected)):
        with torch.no_grad():
            plain = call.run(compile_by(call.subject(target), examiner.backend()), False)
            stays = call.difference(plain, call.run(target, False))
        suspects.append(Suspect(WRONG, "capture" if stays else "autograd", "", differs))
    if not suspects and mine is not None and (differs := call.difference(mine, expected)):
        wrong = find_wrong(compiled, examined) if find_wrong is not None else None
        suspect, script = _of_guards(wrong, differs, _first_line(target), scripts)
        suspects.append(suspect)
        examiner.written += [] if script is None else [script]
    if not suspects and times:
        suspects += _slow_call(call, target, compile_by, BACKENDS.find("braze"))
    return Bisection(name, tuple(suspects), tuple(examiner.written))


# --- private ---------------------------------------------------------------------------------


@final
class _Call:
    """The arguments of a call, copied for each run, which begins from one state."""

    def __init__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._leaves, self._structure = pytree.tree_flatten((args, kwargs))
        self._states = RandomStates((torch.device("cpu"),))

    def subject(self, target: object) -> object:
        """A module's copy: its buffers and gradients are written to."""
        return copy.deepcopy(target) if isinstance(target, torch.nn.Module) else target

    def run_itself(self, target: object) -> list[object]:
        """The same of the target itself, whose copy would have nothing compiled. A module's
        parameters, buffers and gradients are then as before."""
        if not isinstance(target, torch.nn.Module):
            return self.run(target)
        kept = [(t, t.detach().clone(), t.grad) for t in _tensors_of(target)]
        for tensor, _, _ in kept:
            tensor.grad = None
        try:
            found = self._run(target, True)
            return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in found]
        finally:
            with torch.no_grad():
                for tensor, value, grad in kept:
                    tensor.grad = grad
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)

    def run(self, target: object, differentiates: bool = True) -> list[Any]:
        """The tensors and numbers that come out, gradients and what is written to among them; or
        the exception. A module runs as a copy."""
        return self._run(self.subject(target), differentiates)

    def _run(self, target: Any, differentiates: bool) -> list[Any]:
        copies = copies_of(self._leaves)
        for copied, leaf in zip(copies, self._leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                copied.requires_grad_()
        args, kwargs = pytree.tree_unflatten(copies, self._structure)
        self._states.restore()
        try:
            results, _ = pytree.tree_flatten(target(*args, **kwargs))
        except InternalError:
            raise
        except Exception as error:
            return [type(error)]
        finally:
            self._states.restore()
        tensors = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        found = [*results, *copies]
        if tensors and differentiates and torch.is_grad_enabled():
            torch.autograd.backward([t.float().sum() for t in tensors])
            given = [c for c in copies if isinstance(c, torch.Tensor)]
            if isinstance(target, torch.nn.Module):
                given += [*target.parameters()]
            found += [tensor.grad for tensor in given if tensor.is_leaf]
        if isinstance(target, torch.nn.Module):
            found += _tensors_of(target)
        return found

    def seconds(self, target: object) -> float:
        """The least wall seconds of several calls behind the first ones, without gradients."""
        run = functools.partial(self._call, self.subject(target))
        seconds_of(run, self._leaves)
        return seconds_of(run, self._leaves)

    def _call(self, target: Any, leaves: list[object]) -> object:
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return target(*args, **kwargs)

    def difference(self, found: Sequence[object], expected: Sequence[object]) -> str:
        """How two runs differ; "" where they do not."""
        if len(found) != len(expected):
            return f"{found} in the place of {expected}"
        largest = max([largest_of(leaf) for leaf in self._leaves], default=0.0)
        for mine, theirs in zip(found, expected):
            if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
                if error := error_of(mine, theirs, largest):
                    return f"a result differs by {error:.1e} of the largest value"
            elif type(mine) is not type(theirs) or (
                isinstance(mine, (int, float, str, bool, type)) and mine != theirs
            ):
                return f"{mine} in the place of {theirs}"
        return ""


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _of_guards(
    wrong: WrongGuard | None, differs: str, line: tuple[Origin, ...], scripts: bool
) -> tuple[Suspect, Path | None]:
    """What is said of guards that hold where they should not, and a script that shows it."""
    what = f"an entry for other values served the call: {differs}"
    if wrong is None:
        return Suspect(WRONG, "guards", "", what, line), None
    origins = (wrong.now.origin,) if wrong.now.origin.line else line
    found = Suspect(WRONG, "guards", wrong.now.kind.value, f"{what}; {wrong}", origins)
    if not scripts:
        return found, None
    try:
        script = write_guard_script(wrong, str(found))
    except OSError as problem:
        return _with_detail(found, f"no script: {problem}"), None
    shown = found if script is None else replace(found, operators=(OPERATOR,))
    return shown, script


def _slow_call(
    call: _Call, target: object, compile_by: CompileBy, backend: Backend
) -> list[Suspect]:
    """Of a call whose graphs are not slow: what lies between them, if the call is."""
    eager = call.seconds(target)
    compiled = call.seconds(compile_by(target, backend))
    if compiled <= SLOWER * eager:
        return []
    said = f"{1e6 * compiled:.0f} us a call, {1e6 * eager:.0f} us by eager, and no graph is slow"
    return [Suspect(SLOW, "guards", "", said, _first_line(target))]


def _of_nodes(found: Suspect, nodes: Sequence[Node]) -> Suspect:
    """With the operators that show it, and their places."""
    origins = tuple(dict.fromkeys(node.origin for node in nodes if node.origin.line))
    operators = tuple(str(node.op) for node in nodes)
    return Suspect(
        found.kind, found.stage, found.part, found.detail, origins or found.origins, operators
    )


def _with_detail(found: Suspect, more: str) -> Suspect:
    detail = f"{found.detail}; {more}"
    return Suspect(found.kind, found.stage, found.part, detail, found.origins, found.operators)


def _first_line(target: object) -> tuple[Origin, ...]:
    function = getattr(target, "forward", target)
    code = getattr(function, "__code__", None)
    return () if code is None else (Origin(code.co_filename, code.co_firstlineno, code.co_name),)
