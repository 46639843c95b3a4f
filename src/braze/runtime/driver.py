"""Calls of compiled functions: bind, find an entry, run its graph, replay its effects.

    CompiledCallable(f)(x)  ->  bind -> entry.check -> entry.graph -> entry.replay -> value
                                                                  \\-> open frames -> run_frames

A fault in the graph, before anything was written, is answered by running the frame natively from
restored random state: the exception that comes out, if one does, is the program's own.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any, final

import torch

from braze.errors import BrazeWarning
from braze.ir.entry import CompileFrame, FrameValues, PartlyRun
from braze.ir.frame import Break, Refused
from braze.runtime.binding import copy_defaults, make_binder
from braze.runtime.checks import CheckFailed
from braze.runtime.continuation import Continuation
from braze.runtime.entrance import UNKNOWN, Entrance, Undone, make_entrance
from braze.runtime.entries import Entry, Found, FrameCache, FrameKey
from braze.runtime.open_frames import run_frames
from braze.runtime.tracebacks import without_driver_frames
from braze.shapes.binding import ProgramRaises

_COMPILED_CALLEES = 256
Observe = Callable[[str, str], None]


def _ignore(event: str, detail: str) -> None:
    """The observer of nobody."""


def _apply(callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return callable(*args, **kwargs)


@final
class Dispatcher:
    """Everything compiled by one `braze.compile`, and the way to call it.

    compile_frame: the compiler.
    fullgraph: beyond the limit raise RecompileLimitExceeded instead of running eagerly.
    compile_callee: what to call instead of a callable that a frame calls after a break, so that
        it gets graphs of its own; the callable itself where it is not compiled.
    compiled: `compiled(function)` is the compiled form of a function, the same at each call.
    observe: is told (event, detail) of everything that is not a plain hit: "break", "native",
        "fault", "refused", "raise".
    """

    def __init__(
        self,
        compile_frame: CompileFrame,
        *,
        recompile_limit: int = 8,
        fullgraph: bool = False,
        compile_callee: Callable[[Any], Any] | None = None,
        observe: Observe = _ignore,
    ) -> None:
        self.compile_frame = compile_frame
        self.recompile_limit = recompile_limit
        self.fullgraph = fullgraph
        self.compile_callee = compile_callee or (lambda callable: callable)
        self.observe = observe
        self.compiles = True
        self.continuations: dict[Any, Continuation] = {}
        self._caches: dict[FrameKey, FrameCache] = {}
        self._faulted: set[int] = set()
        # Bounded: a program may make functions without end.
        self.compiled = functools.lru_cache(_COMPILED_CALLEES)(self._make_callable)

    def cache(self, key: FrameKey, code: types.CodeType, offset: int) -> FrameCache:
        """The cache of a place; made at its first use. It keeps `code` alive, so that the key's
        `id(code)` stays its own."""
        cache = self._caches.get(key)
        if cache is None:
            fresh = FrameCache(code, offset, self.recompile_limit, self.fullgraph)
            cache = self._caches.setdefault(key, fresh)
        return cache

    def without_compiling(self) -> Dispatcher:
        """A dispatcher that runs what this one compiled, now or later, and compiles nothing."""
        made = Dispatcher(
            self.compile_frame,
            recompile_limit=self.recompile_limit,
            fullgraph=self.fullgraph,
            observe=self.observe,
        )
        made._caches, made.continuations = self._caches, self.continuations
        made.compiles = False
        return made

    def find(
        self, cache: FrameCache, values: FrameValues, function: types.FunctionType | None
    ) -> Found | None:
        """The entry for these values, compiled now if there is none; None: run natively."""
        if not self.compiles:
            return cache.find(values)
        return cache.find_or_compile(self.compile_frame, values, function)

    def _make_callable(self, function: types.FunctionType) -> CompiledCallable:
        return CompiledCallable(function, self)

    def caches(self) -> tuple[FrameCache, ...]:
        """All caches, for reports."""
        return tuple(self._caches.values())

    def reset(self) -> None:
        """Forget everything compiled."""
        for cache in self.caches():
            cache.clear()
        self.continuations.clear()
        self._faulted.clear()

    def call(
        self,
        callable: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        namespace: dict[str, Any],
    ) -> Any:
        """A call that a frame with these globals makes after a break. `namedtuple` and the like
        ask in which module they are called."""
        calls = types.FunctionType(_apply.__code__, namespace)
        return calls(self.compile_callee(callable), args, kwargs)

    def run(
        self,
        entry: Entry,
        inputs: list[torch.Tensor],
        values: FrameValues,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of `function(*args, **kwargs)` by an entry whose guards hold."""
        failed = ""
        try:
            results = entry.run_graph(inputs)
        except Exception as fault:
            failed = self.failure_of(fault)
        else:
            if entry.returns:
                return entry.replay(values, results)
            assert isinstance(entry.compiled.exit, Break)
            self.observe("break", str(entry.compiled.exit.reason.origin))
            frames = entry.replay(values, results)
            inputs.clear()  # the caller holds the list
            del inputs, results, values  # what the frames do not hold may go
            return run_frames(self, frames, entry.compiled.exit.natively)
        result = function(*args, **kwargs)
        self.note_failure(failed, entry)
        return result

    def note_return(self, refused: Refused) -> None:
        """A frame that was refused ran eagerly and returned. Had capture seen it raise, then
        capture was wrong: no exception of the program's, but a fault of ours."""
        if refused.kind == "raises":
            self.observe("unraised", f"{refused.origin}: {refused.reason}")

    def failure_of(self, fault: Exception) -> str:
        """What is to be said of a graph that failed if its frame, which runs eagerly now, returns;
        nothing where it is known that the program raises. Raises what the graph raised where the
        frame must not run eagerly."""
        if isinstance(fault, PartlyRun):
            fault.raise_cause()
        if isinstance(fault, (CheckFailed, ProgramRaises)):
            self.observe("raise", str(fault))
            return ""
        return f"{type(fault).__name__}: {fault}"

    def note_failure(self, text: str, entry: Entry) -> None:
        """A frame whose graph failed ran eagerly and returned: say so, once an entry. Had it
        raised, the graph would have failed for the program's own reason."""
        if not text:
            return
        self.observe("fault", text)
        if id(entry) not in self._faulted:
            self._faulted.add(id(entry))
            warnings.warn(
                f"a compiled graph failed and the frame was run eagerly instead: {text}",
                BrazeWarning,
                stacklevel=4,
            )


@final
class CompiledCallable:
    """A function compiled on demand; as a class attribute it binds like a function."""

    def __init__(self, function: types.FunctionType, dispatcher: Dispatcher) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._dispatcher = dispatcher
        self._refresh()

    def _refresh(self) -> None:
        function = self._function
        self._code = function.__code__
        self._bind = make_binder(function)
        self._cache = self._dispatcher.cache((id(self._code), 0), self._code, 0)
        self._entrance: Entrance | None = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = UNKNOWN if self._entrance is None else self._entrance(args, kwargs)
            if type(answer) is not Undone:
                return answer
            if answer.fault is None:
                return self._find_and_call(args, kwargs)
            return self._run_undone(answer, args, kwargs)
        except BaseException as exception:
            raise without_driver_frames(exception)  # noqa: B904

    def _run_undone(self, undone: Undone, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call by the function itself, since the entry's graph raised."""
        assert undone.fault is not None and undone.entry is not None
        failed = self._dispatcher.failure_of(undone.fault)
        result = self._function(*args, **kwargs)
        self._dispatcher.note_failure(failed, undone.entry)
        return result

    def _find_and_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call by an entry that is looked for, or compiled, or else by the function itself."""
        function, bind = self._function, self._bind
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
            return function(*args, **kwargs)
        # Without `__init__`, whose call takes as long as the check of a few guards.
        values = FrameValues.__new__(FrameValues)
        values.locals, values.stack, values.globals = bound, (), function.__globals__
        if self._entrance is None:
            self._entrance = make_entrance(function, self._cache)
        refused = None
        found = self._cache.find(values)
        if found is None:
            found, refused = self._miss(values)
        if found is not None:
            return self._dispatcher.run(*found, values, function, args, kwargs)
        result = function(*args, **kwargs)
        if refused is not None:
            self._dispatcher.note_return(refused)
        return result

    def _miss(self, values: FrameValues) -> tuple[Found | None, Refused | None]:
        """The entry, compiled now, or why there is none, if that is new."""
        dispatcher, refusals = self._dispatcher, self._cache.refusals
        found = dispatcher.find(self._cache, values, self._function)
        if found is None:
            dispatcher.observe("native", self._code.co_qualname)
        now = self._cache.refusals
        return found, None if now is refusals else now[-1]

    @property
    def dispatcher(self) -> Dispatcher:
        """What compiles it."""
        return self._dispatcher

    def __reduce__(self) -> str:
        """Pickled by name and copied as itself, as functions are."""
        return self._function.__qualname__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)
