"""Every exception that Braze raises, and the warnings it gives.

Messages say where, what, and the way out. Exceptions of the user's own program are never wrapped:
they come out as they do in eager.

    BrazeError (a RuntimeError, as torch.compile's are)
        UserError             the call of Braze itself is wrong
            InvalidOption     unknown or ill-typed option or mode
            InvalidBackend    unknown backend
            CannotFreeze      a call that cannot take weights for constants (`freeze`)
            ConstraintViolated  a program that needs the size of a dimension marked as dynamic
        Unsupported           the program does something that cannot be compiled
            GraphBreakError   a graph break, where `fullgraph=True` forbids it
            RecompileLimitExceeded
            LeftToEagerError  a call that eager would run, where `fullgraph=True` forbids it
            CompileForbidden  a call that needs a compile, where `set_stance` forbids it
        InternalError         a fault of Braze, with the stage and the user's line
            CaptureError      ... in the stage that reads the program
            InvalidIR         ... found by a verifier between two stages
        RecomputedOtherwise   a checkpoint's second call cannot run as its first did
        BackendFailed         a backend raised
        PrivateNameGone       this version of PyTorch lacks a name that a feature needs
        OperatorRaises        an operator of the program raises: the call runs eagerly, and gives
                              PyTorch's exception
        PackageError          a package cannot be used as it is
            InvalidPackage    a file that is damaged, no package, or for other versions or machines
            PackageInputError arguments that a packaged program is not for
        CompilerNotFound      no C++ compiler
        BuildFailed           the C++ compiler refused the generated source
"""

from __future__ import annotations

import difflib
import inspect
import linecache
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import final

# How to go on without what has a fault.
HOW_TO_GO_ON = (
    "To go on without it: such a call runs eagerly where neither fullgraph=True nor "
    "suppress_errors=False is given, @braze.disable leaves one function out, and BRAZE_DISABLE=1 "
    "compiles nothing."
)
HOW_TO_REPORT = (
    "This is a bug in Braze. Please report it with this message and, if you can, the program: "
    "braze.explain(f)(*args) prints what was captured, and `python -m braze minify script.py` "
    f"writes a script of a few operators that shows it.\n{HOW_TO_GO_ON}"
)
HOW_TO_SEE_FRAMES = "BRAZE_VERBOSE=1 shows Braze's own frames, too."


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` was most likely meant to be, or None."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> str:
    """The message for a name that is not in a list: what it was, what is near, what is valid."""
    choices = sorted(valid)
    match = nearest(str(name), choices)
    hint = f" Did you mean {match!r}?" if match else ""
    return f"Unknown {kind} {name!r}.{hint} Valid: {', '.join(map(repr, choices))}."


class BrazeError(RuntimeError):
    """The base of all exceptions of Braze. They can be pickled: worker processes send them."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class UserError(BrazeError):
    """Braze was called with arguments that make no sense."""


class OperatorRaises(BrazeError):
    """An operator of the program raises for what its tensors hold, which is no fault of Braze's:
    the call runs eagerly, and has PyTorch's own exception. Nothing was written yet."""


class IndexRangeError(OperatorRaises, IndexError):
    """A kernel met an index outside its range; running the call eagerly gives PyTorch's words, and
    whether it is an IndexError or a RuntimeError: where that cannot be, it is both."""


class PrivateNameGone(BrazeError):
    """A feature needs a private name, or an operator, that this version of PyTorch lacks."""


@final
class ConstraintViolated(UserError):
    """A dimension that was marked as dynamic is used in a way that fixes or narrows its size."""


class InvalidOption(UserError, ValueError, AttributeError):
    """An unknown option, mode, log name or setting, or a value of the wrong kind."""


class InvalidBackend(UserError):
    """A backend that is neither callable nor registered."""


@final
class CannotFreeze(UserError):
    """A call for which `options={"freeze": True}` cannot take weights for constants: it records
    gradients, or writes to a buffer that another graph has as a constant."""

    def __init__(self, reason: str, *, origin: object = None, hint: str = "") -> None:
        self.origin = origin
        super().__init__(_paragraphs(origin, f'options={{"freeze": True}}: {reason}', hint))


class Unsupported(BrazeError):
    """The program does something that Braze cannot compile.

    code: identifier in the catalogue of graph breaks ("data-dependent-branch"), or "".
    origin: the user's place, printed as `file:line`; None where unknown.
    shows_frames: whether its traceback keeps Braze's own frames.
    """

    def __init__(
        self,
        reason: str,
        *,
        hint: str = "",
        origin: object = None,
        code: str = "",
        verbose: bool = False,
    ) -> None:
        self.shows_frames = verbose
        self.reason = reason
        self.hint = hint
        self.origin = origin
        self.code = code
        super().__init__(self._message())

    def _message(self) -> str:
        return _paragraphs(self.origin, self.reason, self.hint)


@final
class GraphBreakError(Unsupported):
    """A graph break where `fullgraph=True` asks for one graph, or a region of the program forbids
    breaks.

    title: the kind of break. prospect: whether a graph could ever hold it.
    stack: the user's frames, as a traceback prints them. link: the section of the catalogue.
    under: what forbids it. graph: what was captured up to the break, as Python code with dtype,
        shape, strides and device of each value; "" where nothing was.
    """

    def __init__(
        self,
        reason: str,
        *,
        hint: str = "",
        origin: object = None,
        code: str = "",
        graph: str = "",
        under: str = "fullgraph=True",
        title: str = "",
        prospect: str = "",
        stack: str = "",
        link: str = "",
        verbose: bool = False,
    ) -> None:
        self.graph, self.under, self.title, self.prospect = graph, under, title, prospect
        self.stack, self.link = stack, link
        super().__init__(reason, hint=hint, origin=origin, code=code, verbose=verbose)

    def _message(self) -> str:
        where = f"{self.origin}: " if self.origin is not None else ""
        code = f" [{self.code}]" if self.code else ""
        rows = (
            ("Explanation", self.reason),
            ("Hint", self.hint),
            ("Hint", self.prospect),
            ("More", self.link),
        )
        parts = [
            f"{where}graph break under {self.under}{code}: {self.title or self.reason}",
            *[f"  {name}: {text}" for name, text in rows if text],
        ]
        if self.stack:
            parts.append(f"\nUser code:\n{self.stack}")
        if self.graph:
            parts.append(f"\nCaptured up to here:\n{self.graph}")
        if self.stack and not self.shows_frames:
            parts.append(HOW_TO_SEE_FRAMES)
        return "\n".join(parts)


@final
class RecompileLimitExceeded(Unsupported):
    """One function was compiled `recompile_limit` times and no entry fits, under fullgraph."""


@final
class LeftToEagerError(Unsupported):
    """A call that the program's own code would run, where `fullgraph=True` asks for one graph."""

    def _message(self) -> str:
        what = f"left to eager under fullgraph=True [{self.code}]: {self.reason}"
        return _paragraphs(self.origin, what, self.hint)


@final
class CompileForbidden(Unsupported):
    """A call that needs a compile, where the stance "fail_on_recompile" forbids one."""


class InternalError(BrazeError):
    """A fault of Braze itself.

    stage: which part of the pipeline failed ("capture", "lower", ...); None: between two of
        them, which is called "pipeline".
    origin: the user's place that was being compiled, or None.
    cause: the exception that was raised there; also chained as `__cause__`.
    """

    def __init__(
        self,
        stage: str | None,
        cause: BaseException | str,
        *,
        origin: object = None,
        note: str = "",
    ) -> None:
        self.stage = stage = stage or "pipeline"
        self.cause = cause
        self.__cause__ = cause if isinstance(cause, BaseException) else None
        self.origin = origin
        what = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
        details = "\n".join(filter(None, (_user_code(origin), note, HOW_TO_REPORT)))
        super().__init__(_paragraphs(origin, f"stage '{stage}' failed: {what}", details))


@final
class CaptureError(InternalError):
    """A fault while the program's bytecode was read."""

    def __init__(
        self, cause: BaseException | str, *, origin: object = None, note: str = ""
    ) -> None:
        super().__init__("capture", cause, origin=origin, note=note)


@final
class Interrupted(BaseException):
    """A handler of a signal raised `exception` while a frame was compiled."""

    def __init__(self, exception: Exception) -> None:
        super().__init__(exception)
        self.exception = exception


@final
class InvalidIR(InternalError):
    """A verifier found that a pass, which the message names, made an ill-formed program."""


@final
class RecomputedOtherwise(BrazeError):
    """A call in the recomputation of `torch.utils.checkpoint` that cannot run as it did in the
    forward: what it saves would be taken for what the forward saved."""

    def __init__(self, reason: str, *, origin: object = None) -> None:
        hint = (
            "Between a forward and its backward, change nothing that decides how compiled code "
            "runs: no options, modes, globals or sizes of what is checkpointed."
        )
        super().__init__(_paragraphs(origin, reason, hint))


@final
class BackendFailed(BrazeError):
    """A backend raised while it compiled a graph; chained from the backend's exception."""

    def __init__(self, backend: str, cause: BaseException, *, origin: object = None) -> None:
        self.backend = backend
        self.cause = cause
        self.origin = origin
        reason = f"backend {backend!r} raised {type(cause).__name__}: {cause}"
        hint = "backend='eager' runs the same graphs without it: if that works, the backend is it."
        super().__init__(_paragraphs(origin, reason, f"{hint} {HOW_TO_GO_ON}"))


class PackageError(BrazeError):
    """A package cannot be used as it is: its weights are not there, or do not fit."""


@final
class InvalidPackage(PackageError):
    """A file that cannot be loaded: it is damaged, no package, or was written for other versions or
    for another kind of machine."""


@final
class PackageInputError(PackageError, ValueError):
    """Arguments that a packaged program is not for: nothing was computed with them, unless the
    message says that the program itself raises."""


@final
class CompilerNotFound(BrazeError):
    """There is no C++ compiler on this machine."""


@final
class BuildFailed(BrazeError):
    """The C++ compiler refused generated source: the cause of an InternalError.

    command: as run; output: what the compiler printed.
    """

    def __init__(self, command: Iterable[str], output: str) -> None:
        self.command = tuple(command)
        self.output = output
        super().__init__(f"{' '.join(self.command)}\n{output.strip()}")


class CannotBuild(BrazeError):
    """A compiler could not be run to its end: it ran into the time limit, or the machine has no
    disk, memory, process or descriptor left. The graph runs by PyTorch's own kernels.

    lack: what the machine lacks, in words that are the same for every graph; warned of once.
    """

    def __init__(self, message: str, lack: str = "") -> None:
        self.lack = lack or message.partition("\n")[0]
        super().__init__(message)


@final
class CompilerExpired(CannotBuild):
    """A compiler ran into the time limit, and was stopped."""


class CannotTransform(BrazeError):
    """There is no graph for a rule of torch.func's transforms; the message says why."""


class BrazeWarning(UserWarning):
    """The warning category of Braze: a fallback to eager, a missing compiler, a recompile limit."""


def warn(message: str) -> None:
    """Give a `BrazeWarning` at the innermost line that runs now and is not Braze's own."""
    frame: types.FrameType | None = inspect.currentframe()
    level = 1
    while frame is not None:
        name = frame.f_code.co_filename
        is_importing = (
            "importlib" in name and "_bootstrap" in name
        )  # `warnings` counts none of them
        if not is_importing and not name.startswith(_OWN_FILES):
            break
        level += not is_importing
        frame = frame.f_back
    warnings.warn(message, BrazeWarning, stacklevel=level)


_OWN_FILES = (str(Path(__file__).parent), "<braze")


def _rebuild(
    cls: type[BrazeError], args: tuple[object, ...], state: dict[str, object]
) -> BrazeError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def _user_code(origin: object) -> str:
    """The program's line at an `Origin`, as a traceback prints it; "" where it is not known."""
    file, line = str(getattr(origin, "file", "")), int(getattr(origin, "line", 0))
    source = linecache.getline(file, line).strip() if line else ""
    function = getattr(origin, "function", "") or "<module>"
    place = f'User code:\n  File "{file}", line {line}, in {function}'
    return f"{place}\n    {source}" if source else ""


def _paragraphs(origin: object, reason: str, hint: str) -> str:
    where = f"{origin}: " if origin is not None else ""
    return f"{where}{reason}\n{hint}" if hint else f"{where}{reason}"
