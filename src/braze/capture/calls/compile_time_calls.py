"""What `braze.comptime`, and PyTorch's `torch._dynamo.comptime`, do while a frame is captured.

Each is done once a capture: where a break further on has the frame captured again up to it, calls
in front of it are not made a second time.
"""

from __future__ import annotations

import builtins
import sys
import time
import traceback
import types
from typing import TYPE_CHECKING, Any, TextIO, final

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.frames.frame import Frame, Unread
from braze.compat.python.bytecode import instructions_text
from braze.compile_time import CONTEXT_CALLS, Comptime
from braze.ir.graphs.print_graph import print_node
from braze.shapes.symbolic import SymbolicSize
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.graph_recorder import node_of

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_PLAIN = (int, float, complex, bool, str, bytes, types.NoneType, torch.dtype, torch.device)
_CALL = "__call__"
_NAMES = frozenset(CONTEXT_CALLS) | {_CALL}


@final
class CompileTimeValue:
    """A value of the program's while it is captured; prints as what is known of it."""

    def __init__(self, value: Any) -> None:
        self._value = value.value if type(value) is Unread else value

    def __repr__(self) -> str:
        return describe(self._value)

    def python_type(self) -> type:
        """The class that the program would be told."""
        return torch.Tensor if type(self._value) is TracedTensor else type(self._value)

    def is_python_constant(self) -> bool:
        """Whether it is a plain Python value."""
        return type(self._value) in _PLAIN

    def as_python_constant(self) -> object:
        """The plain Python value; TypeError where it is none."""
        if not self.is_python_constant():
            raise TypeError(f"{self!r} is no constant")
        return self._value

    def is_dynamic(self) -> bool:
        """Whether it is a symbol, or a tensor with one among its sizes."""
        if type(self._value) is TracedTensor:
            return any(type(size) is not int for size in self._value.place.type.shape)
        return isinstance(self._value, SymbolicSize)

    def size(self, dim: int | None = None) -> Any:
        """The sizes of a tensor, or one of them."""
        return self._value.size() if dim is None else self._value.size(dim)


@final
class CompileTimeContext:
    """What a function of `comptime(function)` is given: the capture where the call stands."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def parent(self) -> CompileTimeContext:
        """The caller's; here the call stands in the program's own frame already."""
        return self

    def get_local(self, name: str, *, stacklevel: int = 0) -> CompileTimeValue:
        """A local variable. Raises KeyError."""
        frame = self._frame(stacklevel)
        if name in frame.locals:
            return CompileTimeValue(frame.locals[name])
        return CompileTimeValue(frame.cells[name].cell_contents)

    def print(self, value: object, *, file: TextIO | None = None) -> None:
        """Print what is known of a value."""
        shown = repr(value) if type(value) is CompileTimeValue else describe(value)
        self._write([shown], file)

    def print_bt(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """Print the stack of functions that are captured, as a traceback does."""
        frames = self._interpreter.frames[: len(self._interpreter.frames) - stacklevel]
        places = [(f.code.co_filename, f.current[1].line, f.code.co_qualname) for f in frames]
        stack = traceback.StackSummary.from_list([traceback.FrameSummary(*p) for p in places])
        self._write(["".join(stack.format()).rstrip()], file)

    def print_locals(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """Print the local variables, one a line."""
        frame = self._frame(stacklevel)
        lines = [f"{name} = {describe(value)}" for name, value in frame.locals.items()]
        self._write(lines, file)

    def print_graph(self, *, verbose: bool = True, file: TextIO | None = None) -> None:
        """Print the operators recorded so far, one a line. verbose: with the user's lines."""
        calls = self._interpreter.tracer.recorder.calls
        self._write([print_node(node_of(call), origins=verbose) for call in calls], file)

    def print_guards(self, *, file: TextIO | None = None) -> None:
        """Print what the capture assumes so far, one a line."""
        guards = self._interpreter.guard_context.guards_so_far()
        lines = [f"{guard.kind.value} {guard.source or ''}".rstrip() for guard in guards]
        lines = [
            f"{line}  # {guard.origin}" if guard.origin.line else line
            for line, guard in zip(lines, guards)
        ]
        self._write(lines, file)

    def print_disas(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """Print the function's instructions, with an arrow at this one."""
        frame = self._frame(stacklevel)
        self._write([instructions_text(frame.code, frame.current[1].offset).rstrip()], file)

    disas = print_disas

    def print_value_stack(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """Print what is on the interpreter's stack, bottom first."""
        self._write([f"- {describe(value)}" for value in self._frame(stacklevel).stack], file)

    def print_value_stack_and_return(self, value: object, *, stacklevel: int = 0) -> object:
        """The same inside of an expression, whose value is `value`."""
        self.print_value_stack(stacklevel=stacklevel)
        return value

    def breakpoint(self) -> None:
        """Open the debugger. In it, `ctx` is this."""
        ctx = self  # noqa: F841 - for who looks
        builtins.breakpoint()

    def graph_break(self, message: str = "comptime.graph_break()") -> None:
        """End the graph at this call."""
        raise BreakRequested("explicit", message)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def _frame(self, stacklevel: int) -> Frame:
        frames = self._interpreter.frames
        return frames[max(len(frames) - 1 - stacklevel, 0)]

    def _write(self, lines: list[str], file: TextIO | None) -> None:
        builtins.print("\n".join(lines), file=file or sys.stdout)


def describe(value: Any) -> str:
    """A value of the program's, without asking it: its `__repr__` may be the program's own."""
    kind = type(value)
    if kind is Unread:
        return describe(value.value)
    if kind is TracedTensor:
        return f"Tensor {value.place.type}"
    if kind in _PLAIN:
        return repr(value)
    if isinstance(value, SymbolicSize):
        return str(value.expr)
    if kind in (list, tuple, torch.Size):
        inner = ", ".join(map(describe, value))
        return f"({inner})" if kind is tuple else f"[{inner}]"
    if kind is dict:
        return f"{{{', '.join(f'{describe(k)}: {describe(v)}' for k, v in value.items())}}}"
    if kind in (torch.Tensor, torch.nn.Parameter):
        sizes = ", ".join(map(str, value.shape))
        return f"{kind.__name__} {str(value.dtype).removeprefix('torch.')}[{sizes}]{value.device}"
    if kind in (types.FunctionType, type):
        return f"<{value.__qualname__}>"
    return f"<{kind.__qualname__}>"


def call_at_compile_time(
    interpreter: Interpreter, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> object:
    """A call of `comptime.<name>` in the program."""
    if name == "graph_break":
        raise BreakRequested("explicit", "comptime.graph_break()")
    # A capture up to a break that is known has been here before.
    is_again = interpreter.leave_at >= 0
    context = CompileTimeContext(interpreter)
    if name == _CALL:
        if not is_again:
            interpreter.native(args[0] if args else kwargs["fn"], context)
        return None
    if is_again:
        return args[0] if name == "print_value_stack_and_return" else None
    return getattr(context, name)(*args, **kwargs)


def is_compile_time_call(function: types.FunctionType) -> bool:
    """Whether a function is one of PyTorch's own `comptime`."""
    owner, _, name = function.__qualname__.rpartition(".")
    return owner == "_Comptime" and name in _NAMES


def _answer(name: str) -> None:
    @answers(getattr(Comptime, name) if name != _CALL else vars(Comptime)[_CALL].__func__)
    def call(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return call_at_compile_time(interpreter, name, args, kwargs)


for _name in sorted(_NAMES):
    _answer(_name)
