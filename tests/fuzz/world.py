"""One run of a program from fresh state, eagerly or compiled, observed after each step."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.overrides import TorchFunctionMode

from braze.errors import BrazeError, BrazeWarning
from braze.trace import FAULTS
from tests.fuzz.program import Program
from tests.fuzz.state import MODULE, Entry, Observer, is_forbidden

_HIDDEN = frozenset({"run", "braze", "R", "backward", "backward_twice", "P", "T"})
# CPython raises this where an iterator meets more entries than the dict had when it began, which is
# as an entry that was deleted and put in again lies in the dict's table; and it skips or repeats
# entries without a word where the table was rebuilt meanwhile. A compiled frame writes to a dict
# when its graph has run, so its table has another past. No program can rely on either.
CHANGED_KEYS = "dictionary keys changed during iteration"
# What eager refuses to differentiate, a graph without writes may well be able to. A view that eager
# forbids to use (its base was written to under another grad mode, or past it), a graph may well
# have made otherwise. Programs part from there on.
_REFUSALS = (
    "modified by an inplace operation",
    "its base or another view of its base has been modified inplace",
    CHANGED_KEYS,
)
_LEAF = "a leaf Variable that requires grad is being used in an in-place operation"
Compile = Callable[[Any], Any]


@final
@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is seen after a step: `state`, `error` ("" where none was raised), `faults` (warnings
    about faults of the compiler).

    refusal: what was refused, of that which another run may rightly be allowed; "" if nothing was.
    """

    step: str
    state: list[Entry]
    error: str
    refusal: str
    is_refused_as_leaf: bool
    faults: tuple[str, ...]


def file_name(program: Program) -> str:
    """The name under which the program's lines appear in tracebacks."""
    return f"<fuzz {program.seed}>"


class Refusals(TorchFunctionMode):
    """Notes what torch refuses to do, also where the program catches the exception.

    looking: each tensor is asked for its history before an operation gets it. A view whose base was
    written to through another view has its old history until somebody asks (`x.grad_fn`,
    `print(x)`), and is taken for a leaf by the check of in-place operations: eager raises or not as
    the program was looked at before. Guards look.
    """

    def __init__(self, looking: bool = False) -> None:
        super().__init__()
        self.looking = looking
        self.texts: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for argument in (*args, *(kwargs or {}).values()) if self.looking else ():
            if isinstance(argument, torch.Tensor):
                with contextlib.suppress(RuntimeError):  # for some views it is forbidden
                    _ = argument.grad_fn
        try:
            return function(*args, **(kwargs or {}))
        except RuntimeError as error:
            self.texts.append(str(error))
            raise


def run_world(
    program: Program, compile: Compile | None, *, looking: bool = False
) -> list[StepRecord]:
    """Execute the module and its steps; `compile` makes what the steps call as `run`. looking: see
    Refusals."""
    name = file_name(program)
    lines = program.text.splitlines(keepends=True)
    linecache.cache[name] = (len(program.text), None, lines, name)
    module = types.ModuleType(MODULE)
    outer, sys.modules[MODULE] = sys.modules.get(MODULE), module
    space = vars(module)
    try:
        with _fresh_ambient_state():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                code = builtin_compile(program.text, name)
            exec(code, space)
            space["R"] = []
            space["run"] = space["entry"] if compile is None else compile(space["entry"])
            observer = Observer()
            observer.observe({key: space[key] for key in space if _is_root(key)})
            refusals = Refusals(looking) if compile is None else None
            return [_step(step, space, observer, name, refusals) for step in program.steps]
    finally:
        linecache.cache.pop(name, None)
        sys.modules.pop(MODULE)
        if outer is not None:
            sys.modules[MODULE] = outer


def builtin_compile(text: str, name: str) -> types.CodeType:
    """The code of a module."""
    return compile(text, name, "exec", dont_inherit=True)


def _step(
    step: str,
    space: dict[str, Any],
    observer: Observer,
    name: str,
    refusals: Refusals | None,
) -> StepRecord:
    printed = io.StringIO()
    error: BaseException | None = None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", BrazeWarning)
        try:
            with refusals or contextlib.nullcontext():
                _execute(step, space)
        except Exception as raised:
            error = raised
    lines = [] if error is None else _user_lines(error, name)
    roots = {key: space[key] for key in space if _is_root(key)}
    roots |= {
        "R": space["R"],
        "printed": printed.getvalue(),
        "error": error,
        "lines": lines,
        "random": hash(random.getstate()),
        "torch random": [hash(s.numpy().tobytes()) for s in _random_states()],
        "ambient": _ambient_state(),
    }
    if isinstance(error, BrazeError):
        raise error
    faults = [str(w.message) for w in caught if issubclass(w.category, BrazeWarning)]
    state = observer.observe(roots)
    texts = [str(error)]
    if refusals is not None:
        texts += refusals.texts
        refusals.texts = []
    return StepRecord(
        step,
        state,
        "" if error is None else repr(error),
        _refusal(texts, state),
        any(_LEAF in text for text in texts),
        tuple(f for f in faults if "runs eagerly" not in f or any(f"[{c}]" in f for c in FAULTS)),
    )


def _refusal(texts: list[str], state: list[Entry]) -> str:
    found = next((part for part in _REFUSALS for text in texts if part in text), "")
    return found or ("a view" if any(is_forbidden(what) for _, what in state) else "")


def _is_root(name: str) -> bool:
    return not name.startswith("__") and name not in _HIDDEN


def _execute(step: str, space: dict[str, Any]) -> None:
    tree = ast.parse(step)
    if isinstance(tree.body[-1], ast.Expr):
        result = eval(compile(step, "<step>", "eval"), space)
        space["R"].append(result)
    else:
        exec(compile(step, "<step>", "exec"), space)


def _user_lines(error: BaseException, name: str) -> list[str]:
    lines = []
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == name:
            lines.append(f"{entry.tb_lineno} {entry.tb_frame.f_code.co_qualname}")
        entry = entry.tb_next
    return lines


def _random_states() -> Iterator[torch.Tensor]:
    yield torch.get_rng_state()
    if torch.cuda.is_initialized():
        yield torch.cuda.get_rng_state()


def _ambient_state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


@contextlib.contextmanager
def _fresh_ambient_state() -> Iterator[None]:
    """The same random numbers and modes for every world."""
    torch.manual_seed(0)
    random.seed(0)
    torch.utils.hooks.RemovableHandle.next_id = 0  # hooks are keyed by it
    try:
        yield
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
