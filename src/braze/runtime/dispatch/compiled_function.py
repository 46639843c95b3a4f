"""Calls of compiled functions: bind, find an entry, run its graph, replay its effects.

    CompiledCallable(f)(x)  ->  bind -> entry.check -> entry.graph -> entry.replay -> value
                                                                  \\-> open frames -> run_frames

A fault in the graph, before anything was written, is answered by running the frame natively from
restored random state: the exception that comes out, if one does, is the program's own.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, final

import torch

from braze.compat.python.hidden_frames import hide_frames
from braze.compat.python.other_compilers import interpreted_as
from braze.compat.python.signal_handlers import is_raised_by_handler
from braze.compat.torch.aten import LinAlgError
from braze.compat.torch.functorch import WithoutTransforms
from braze.compat.torch.tracers import active_tracer, only_transforms
from braze.compile_records import LeftToEager
from braze.errors import HOW_TO_REPORT, OperatorRaises, RecomputedOtherwise
from braze.ir.captured.compile_request import (
    CompileFrame,
    FrameValues,
    HooksInForce,
    PartlyRun,
    SavingGraph,
)
from braze.ir.origin import Origin
from braze.runtime.autograd.checkpoint_calls import EagerRun, recomputed_otherwise, way_of_forward
from braze.runtime.dispatch.argument_binding import copy_defaults, make_binder
from braze.runtime.dispatch.cache_entries import CacheEntry, Found, FrameCache, FrameKey
from braze.runtime.dispatch.eager_fallback import Tally, leave_to_eager, shown_error
from braze.runtime.dispatch.fast_path import UNKNOWN, Entrance, Undone, make_entrance
from braze.runtime.dispatch.runtime_checks import CheckFailed
from braze.runtime.dispatch.signalled_calls import raise_within
from braze.runtime.dispatch.stance import DEFAULT, Stance, without_compile
from braze.runtime.dispatch.tracebacks import without_driver_frames
from braze.runtime.guards.evaluate import explain_failure
from braze.runtime.resume.continuation import Continuation
from braze.runtime.resume.frame_calls import StandIns
from braze.runtime.resume.frame_driver import run_frames
from braze.shapes.binding import ProgramRaises, UnmetCheck

_COMPILED_CALLEES = 256
_MOST_LEFT_OUT = 64  # entries of a function whose operators run eagerly: they hold no kernels
_NUMBERS = itertools.count()
_Owner = TypeVar("_Owner")
# The kinds of transforms around a call, outermost first -> what compiles frames for such calls.
UnderTransforms: TypeAlias = Callable[[tuple[str, ...]], CompileFrame]


@final
class Dispatcher:
    """Everything compiled by one `braze.compile`, and the way to call it.

    compile_frame: the compiler.
    fullgraph: beyond the limit raise RecompileLimitExceeded instead of running eagerly.
    compile_callee: what to call instead of a callable that a frame calls after a break, so that
        it gets graphs of its own; the callable itself where it is not compiled.
    stance: what calls do now; compiler_for: the compiler that uses a backend of a stance's.
    record: is told of each call that is left to eager. tally: has the counts of calls.
    owners: what the user calls; empty where nobody said. name, place: of what it was made of.
    number: dispatchers that were made before. was_reset: everything was forgotten once.
    was_called: a call came under a stance that takes the first one apart.
    leaves_out: whether the operators of a function run eagerly; what it calls may be compiled.
    """

    def __init__(
        self,
        compile_frame: CompileFrame,
        *,
        recompile_limit: int = 8,
        fullgraph: bool = False,
        compile_callee: Callable[[Any], Any] | None = None,
        record: Callable[[LeftToEager], None] | None = None,
        compiler_for: Callable[[object], CompileFrame] | None = None,
        leaves_out: Callable[[types.CodeType], bool] | None = None,
        under_transforms: UnderTransforms | None = None,
    ) -> None:
        self.compile_frame = compile_frame
        self.under_transforms = under_transforms
        self.stance = DEFAULT
        self.compiler_for = compiler_for or (lambda backend: compile_frame)
        self._forced: dict[tuple[object, FrameCache], FrameCache] = {}
        self._transformed: dict[tuple[tuple[str, ...], FrameCache], FrameCache] = {}
        self._begun: set[tuple[types.CodeType, tuple[str, ...]]] = set()  # under which transforms
        self.recompile_limit = recompile_limit
        self.leaves_out = leaves_out or (lambda code: False)
        self.fullgraph = fullgraph
        self.compile_callee = compile_callee or (lambda callable: callable)
        self.tally = Tally(fullgraph, record)
        self.owners: list[weakref.ref[Any]] = []
        self.name = self.place = ""
        self.number, self.was_reset = next(_NUMBERS), False
        self.was_called = False
        self.compiles = True
        self.continuations: dict[Any, Continuation] = {}
        self.stand_ins: StandIns = {}
        self._caches: dict[FrameKey, FrameCache] = {}
        self._callees: Callable[[], CompiledFunctions | None] = _no_functions

    def owned_by(self, owner: _Owner, name: str, code: types.CodeType | None) -> _Owner:
        """The owner: what the user calls, made of a function with this code or of a module. Each
        compile of one object by one compiler has an owner of its own."""
        self.owners = [known for known in self.owners if known() is not None]
        self.owners.append(weakref.ref(owner))
        self.name = name
        self.place = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        return owner

    def cache(self, key: FrameKey, code: types.CodeType, offset: int) -> FrameCache:
        """The cache of a place; made at its first use. It keeps `code` alive, so that the key's
        `id(code)` stays its own."""
        cache = self._caches.get(key)
        if cache is None:
            left_out = self.leaves_out(code)
            limit = _MOST_LEFT_OUT if left_out else self.recompile_limit
            is_whole = self.fullgraph and not left_out
            fresh = FrameCache(code, offset, limit, is_whole, self.tally, left_out)
            cache = self._caches.setdefault(key, fresh)
            cache.hide(self.stance.hides_entries)
        return cache

    @property
    def runs_eagerly(self) -> bool:
        """Whether calls run eagerly, compiled or not, in a block of `disable()` or by a stance."""
        return self.stance.name == "force_eager"

    def set_stance(self, stance: Stance) -> None:
        """Follow a stance from the next call on."""
        self.stance = DEFAULT if stance == DEFAULT else stance
        for cache in self.caches():
            cache.hide(stance.hides_entries)

    def without_compiling(self) -> Dispatcher:
        """A dispatcher that runs what this one compiled, now or later, and compiles nothing."""
        made = Dispatcher(
            self.compile_frame,
            recompile_limit=self.recompile_limit,
            fullgraph=self.fullgraph,
            record=self.tally.record,
            compiler_for=self.compiler_for,
            leaves_out=self.leaves_out,
        )
        made._caches, made.continuations = self._caches, self.continuations
        made.stand_ins = self.stand_ins
        made.compiles = False
        return made

    def find(
        self, cache: FrameCache, values: FrameValues, function: types.FunctionType | None
    ) -> Found | LeftToEager:
        """The entry for these values, compiled now if there is none, or why there is none."""
        followed = self._followed(cache, values)
        if followed is not None:
            return followed
        if self.stance is not DEFAULT:
            return self._find_in_stance(self.stance, cache, values, function)
        if not self.compiles:
            return cache.find(values) or _run_only(cache)
        tracer = active_tracer()
        if tracer is not None:
            return self._find_under(cache, values, function) or _traced(cache, tracer)
        return cache.find_or_compile(self.compile_frame, values, function)

    def _find_under(
        self, cache: FrameCache, values: FrameValues, function: types.FunctionType | None
    ) -> Found | LeftToEager | None:
        """The entry for a call under transforms of torch.func, or why there is none; None where
        something else has to see the program's operators, and of the rest of a frame that entered
        the level itself. The entries are others for each stack of transforms: what a graph may hold
        depends on it."""
        kinds = () if self.under_transforms is None else only_transforms()
        if not kinds:
            return None
        if cache.offset == 0:
            self._begun.add((cache.code, kinds))
        elif (cache.code, kinds) not in self._begun:
            return None
        assert self.under_transforms is not None
        own = self._transformed.get((kinds, cache))
        if own is None:
            as_here = cache.offset, cache.limit, cache.fullgraph, cache.tally, cache.is_left_out
            own = self._transformed.setdefault((kinds, cache), FrameCache(cache.code, *as_here))
        with WithoutTransforms():
            return own.find_or_compile(self.under_transforms(kinds), values, function)

    def found_in_forward(
        self, entry: CacheEntry, values: FrameValues, otherwise: RecomputedOtherwise
    ) -> Found | LeftToEager:
        """What ran the forward's call of a checkpoint, for its recomputation, where another entry
        was found, which refused. Raises what it raised where that call was another."""
        saving = entry.compiled.saving
        cache = None if saving is None else saving.cache()
        assert isinstance(cache, FrameCache)
        followed = self._followed(cache, values)
        if followed is None:
            raise otherwise
        return followed

    def _followed(self, cache: FrameCache, values: FrameValues) -> Found | LeftToEager | None:
        """In the recomputation of a checkpoint, what ran the same call in its forward. None where
        none is known, or no checkpoint is computed again."""
        way = way_of_forward()
        if way is None:
            return None
        code = cache.code
        if type(way) is EagerRun:
            if way != EagerRun(code, cache.offset):
                return None
            what, where = (
                "its checkpoint's forward did",
                f"{code.co_filename}:{code.co_firstlineno}",
            )
            name, is_rest = code.co_qualname, cache.offset > 0
            return LeftToEager("recomputed", what, "", where, name, is_rest, is_asked_for=True)
        assert type(way) is SavingGraph
        entry, place = way.entry(), way.cache()
        assert isinstance(entry, CacheEntry) and isinstance(place, FrameCache)
        if self._place_of(place) is not self._place_of(cache):
            return None
        inputs = entry.check(values)
        if inputs is None:
            failure = explain_failure(entry.memory.tree, values)
            raise recomputed_otherwise(way, f"something else, since that does not fit: {failure}")
        return entry, inputs

    def _place_of(self, cache: FrameCache) -> FrameCache:
        """The cache of the same place that has what the callable's own backend compiled."""
        forced = list(self._forced.items())
        return next((own for (_, own), other in forced if other is cache), cache)

    def _find_in_stance(
        self,
        stance: Stance,
        cache: FrameCache,
        values: FrameValues,
        function: types.FunctionType | None,
    ) -> Found | LeftToEager:
        """The entry for these values that serves under a stance, or why there is none."""
        code = cache.code
        if stance.is_of_first_call and not self._is_first_call(cache, values):
            if not self.compiles:
                return cache.find(values) or _run_only(cache)
            return cache.find_or_compile(self.compile_frame, values, function)
        if stance.backend is None:
            found = cache.find(values)  # none where the stance hides them
            where = Origin(code.co_filename, code.co_firstlineno)
            return found or without_compile(stance, where, code.co_qualname, cache.offset > 0)
        forced = self._forced.get((stance.backend, cache))
        if forced is None:
            as_here = cache.offset, cache.limit, cache.fullgraph, cache.tally, cache.is_left_out
            made = FrameCache(code, *as_here)
            forced = self._forced.setdefault((stance.backend, cache), made)
        tracer = active_tracer()
        if tracer is not None:
            return _traced(cache, tracer)
        if not self.compiles:
            return forced.find(values) or _run_only(cache)
        return forced.find_or_compile(self.compiler_for(stance.backend), values, function)

    def _is_first_call(self, cache: FrameCache, values: FrameValues) -> bool:
        """Whether nothing was compiled, nor asked for under a stance that takes this call apart."""
        if self.was_called or any(one.entries for one in self.caches()):
            return False
        self.was_called = True
        cache.note_sizes(values)
        return True

    def compiled(self, function: types.FunctionType) -> CompiledCallable:
        """The compiled form of a function that a frame calls; the same at each call while somebody
        holds `callees()`."""
        return self.callees().compiled(function)

    def callees(self) -> CompiledFunctions:
        """The functions that frames call. What the user calls holds them, and they the dispatcher,
        so that nothing is held in a circle."""
        found = self._callees()
        if found is None:
            found = CompiledFunctions(self, is_inner=True)
            self._callees = weakref.ref(found)
        return found

    def caches(self) -> tuple[FrameCache, ...]:
        """All caches, for reports."""
        return tuple(self._caches.values())

    def compiled_entries(self) -> list[CacheEntry]:
        """Everything that is compiled, also for backends that a stance forced."""
        caches = (*self.caches(), *self._forced.values(), *self._transformed.values())
        return [entry for cache in caches for entry in cache.entries or cache.hidden or ()]

    def reset(self) -> None:
        """Forget everything compiled."""
        for cache in self.caches():
            cache.clear()
        self._forced.clear()
        self._transformed.clear()
        self._begun.clear()
        self.continuations.clear()
        self.stand_ins.clear()
        self.tally.clear()
        self.was_reset, self.was_called = True, False

    def call(self, callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that a frame makes after a break."""
        return self.compile_callee(callable)(*args, **kwargs)

    def run(
        self,
        entry: CacheEntry,
        inputs: list[torch.Tensor],
        values: FrameValues,
        function: types.FunctionType,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Any:
        """The result of `function(*args, **kwargs)` by an entry whose guards hold."""
        found: Found | LeftToEager | None = None
        signalled: Exception | None = None
        try:
            results = entry.run_graph(inputs)
        except RecomputedOtherwise as otherwise:
            found = self.found_in_forward(entry, values, otherwise)
        except Exception as fault:
            if is_raised_by_handler(fault):
                signalled = fault
            else:
                why = self.left_by_fault(fault, function.__code__, is_rest=False)
        else:
            if entry.returns:
                return entry.replay(values, results)
            self.tally.broken.add()
            frames = entry.replay(values, results)
            inputs.clear()  # the caller holds the list
            del inputs, results, values  # what the frames do not hold may go
            return run_frames(self, frames, entry)
        if signalled is not None:
            return raise_within(self.tally, signalled, function, args, kwargs)
        if type(found) is tuple:
            return self.run(*found, values, function, args, kwargs)
        if isinstance(found, LeftToEager):
            why = found
        return leave_to_eager(self.tally, why, function, args, kwargs)

    def left_by_fault(
        self, fault: Exception, code: types.CodeType, *, is_rest: bool
    ) -> LeftToEager:
        """Why a frame with this code runs eagerly whose graph failed: the program itself may raise.
        Raises what the graph raised where the frame must not run eagerly."""
        where = f"{code.co_filename}:{code.co_firstlineno}"
        if isinstance(fault, PartlyRun):
            fault.raise_cause()
        if isinstance(fault, HooksInForce):
            hint = "compile the function inside of which the hooks are set, or set none"
            name = code.co_qualname
            return LeftToEager(_HOOKS, str(fault), hint, where, name, is_rest=is_rest)
        if isinstance(fault, _PROGRAM_RAISES):
            what, returned = str(fault), "check-failed"
        else:
            what, returned = f"a compiled graph failed: {type(fault).__name__}: {fault}", _FAULT
        return LeftToEager(
            "program-raises",
            what,
            HOW_TO_REPORT if returned == _FAULT and type(fault) is not UnmetCheck else "",
            where,
            code.co_qualname,
            is_rest=is_rest,
            is_for_good=True,
            may_raise=True,
            returned=returned,
            raised=shown_error(fault) if returned == _FAULT else "",
        )


_FAULT = "graph-fault"
# What a graph raises where an operator of the program does, for what its tensors hold.
_PROGRAM_RAISES = (CheckFailed, ProgramRaises, OperatorRaises, LinAlgError)
_HOOKS = "saved-tensors-hooks"


def _run_only(cache: FrameCache) -> LeftToEager:
    """Why a call is left to eager that no entry fits, where nothing more is compiled."""
    code, what = cache.code, "nothing is compiled for new kinds of input"
    where = f"{code.co_filename}:{code.co_firstlineno}"
    is_rest, hint = cache.offset > 0, "call what braze.compile gave"
    return LeftToEager(
        "run-only", what, hint, where, code.co_qualname, is_rest=is_rest, is_asked_for=True
    )


def _traced(cache: FrameCache, tracer: str) -> LeftToEager:
    """Why a call is left to eager that a tracer of PyTorch's watches; the next one is compiled."""
    code, what = cache.code, f"{tracer} is to see the program's own operators"
    where, is_rest = f"{code.co_filename}:{code.co_firstlineno}", cache.offset > 0
    hint = "trace what braze.compile was given"
    return LeftToEager("tracer", what, hint, where, code.co_qualname, is_rest=is_rest)


def _misfit(code: types.CodeType) -> LeftToEager:
    """Why a call is left to eager that the function refuses."""
    what, where = "the arguments do not fit", f"{code.co_filename}:{code.co_firstlineno}"
    name = code.co_qualname
    return LeftToEager(
        "wrong-arguments", what, "", where, name, may_raise=True, returned="wrong-arguments"
    )


@final
class CompiledFunctions:
    """The compiled forms of a dispatcher's functions, each the same at each call; bounded, since a
    program may make functions without end. is_inner: frames call them, not the user."""

    def __init__(self, dispatcher: Dispatcher, *, is_inner: bool = False) -> None:
        make = functools.partial(CompiledCallable, dispatcher=dispatcher, is_inner=is_inner)
        self.compiled = functools.lru_cache(_COMPILED_CALLEES)(make)


def _no_functions() -> None:
    return None


@final
class CompiledCallable:
    """A function compiled on demand; as a class attribute it binds like a function.

    is_inner: frames call it, not the user.
    """

    def __init__(
        self, function: types.FunctionType, dispatcher: Dispatcher, *, is_inner: bool = False
    ) -> None:
        functools.update_wrapper(self, function)
        tally = dispatcher.tally
        self._calls = tally.inner if is_inner else tally.calls
        self._function = function
        self._dispatcher = dispatcher
        # Those that are held there are no holders themselves.
        self._callees = None if is_inner else dispatcher.callees()
        self._refresh()

    @property
    def _torchdynamo_orig_callable(self) -> types.FunctionType:
        """What `torch.compiler.disable(compiled)` calls, and `torch.compile(compiled)` compiles,
        where the number says that it is for `self`."""
        return self._function

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)

    def _refresh(self) -> None:
        function = self._function
        self._code = function.__code__
        self._bind = make_binder(function)
        self._cache = self._dispatcher.cache((id(self._code), 0), self._code, 0)
        self._entrance: Entrance | None = None

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        try:
            answer = UNKNOWN if self._entrance is None else self._entrance(args, kwargs)
            if type(answer) is not Undone:
                return answer
            if answer.fault is None:
                return self._find_and_call(args, kwargs)
            return self._run_undone(answer, args, kwargs)
        except BaseException as exception:
            raise without_driver_frames(exception)  # noqa: B904

    def _run_undone(
        self, undone: Undone, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """The call by the function itself, since the entry's graph raised."""
        assert undone.fault is not None
        if type(undone.fault) is RecomputedOtherwise:
            return self._find_and_run(args, kwargs)
        if is_raised_by_handler(undone.fault):
            return raise_within(self._dispatcher.tally, undone.fault, self._function, args, kwargs)
        why = self._dispatcher.left_by_fault(undone.fault, self._code, is_rest=False)
        return leave_to_eager(self._dispatcher.tally, why, self._function, args, kwargs)

    def _find_and_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """The call by an entry that is looked for, or compiled, or else by the function itself."""
        self._calls.add()
        return self._find_and_run(args, kwargs)

    def _find_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The same of a call that is counted already."""
        function, bind, dispatcher = self._function, self._bind, self._dispatcher
        if function.__defaults__ is not bind.__defaults__ or (
            function.__kwdefaults__ is not bind.__kwdefaults__
        ):
            copy_defaults(function, bind)
        if function.__code__ is not self._code:
            self._refresh()
            bind = self._bind
        try:
            bound = bind(*args, **kwargs)
        except TypeError:
            bound = None
        if bound is None:  # outside of the except clause, so that the error has no context
            why = _misfit(function.__code__)
            return leave_to_eager(dispatcher.tally, why, function, args, kwargs)
        # Without `__init__`, whose call takes as long as the check of a few guards.
        values = FrameValues.__new__(FrameValues)
        values.locals, values.stack, values.globals = bound, (), function.__globals__
        if self._entrance is None:
            self._entrance = make_entrance(function, self._cache, self._calls.cell)
        signalled: Exception | None = None
        try:
            found = self._cache.find(values) or dispatcher.find(self._cache, values, function)
        except Exception as error:
            if not is_raised_by_handler(error):
                raise
            signalled = error
        if signalled is not None:
            return raise_within(dispatcher.tally, signalled, function, args, kwargs)
        if isinstance(found, LeftToEager):
            return leave_to_eager(dispatcher.tally, found, function, args, kwargs)
        return dispatcher.run(*found, values, function, args, kwargs)

    @property
    def dispatcher(self) -> Dispatcher:
        """What compiles it."""
        return self._dispatcher

    def __reduce__(self) -> str:
        """Pickled by name and copied as itself, as functions are."""
        return self._function.__qualname__

    def __prepare_scriptable__(self) -> types.FunctionType:
        """What `torch.jit.script` compiles."""
        return self._function

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def _run_original(compiled: CompiledCallable, /, *args: object, **kwargs: object) -> object:
    return compiled._function(*args, **kwargs)


hide_frames(__name__)
interpreted_as(CompiledCallable.__call__, _run_original)
