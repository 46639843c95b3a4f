"""Import statements inside functions: modules that are loaded already are simply named."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame
from braze.capture.objects.attribute_load import load_attribute
from braze.capture.objects.items import store_item
from braze.capture.objects.iteration import native_iterable
from braze.capture.state.guard_context import BUILTINS
from braze.compat.python.bytecode import Instruction
from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import ObjectSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@opcode("IMPORT_NAME")
def import_name(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names = frame.stack.pop()
    level = frame.stack.pop()
    name = instruction.value
    package = frame.globals.get("__package__") or frame.globals.get("__name__", "")
    full_name = name
    if level:
        relative = "." * level + name
        full_name = interpreter.native(importlib.util.resolve_name, relative, package)
    module = _loaded(interpreter, full_name)
    if module is None:
        raise _import_now(interpreter, full_name)
    for part in _missing_parts(module, full_name, names or ()):
        raise _import_now(interpreter, part)
    if not names and not level:
        module = _loaded(interpreter, full_name.partition(".")[0])
    frame.stack.append(
        interpreter.guard_context.track(module, ObjectSource(module.__name__, module))
    )


def _loaded(interpreter: Interpreter, name: str) -> Any:
    """The module that is loaded under a name, or None; guarded, as is who imports."""
    guard_context = interpreter.guard_context
    importing = BUILTINS.get("__import__", ABSENT)
    if importing is not _IMPORT:
        raise BreakRequested("unsupported-function", "an __import__ of the program's")
    guard_context.guard_namespace(BUILTINS, "__import__", importing, "builtins")
    if interpreter.side_effects.written(sys.modules, name) is not ABSENT:
        raise BreakRequested("input-output", f"importing {name}, which the frame wrote to")
    found = sys.modules.get(name, ABSENT)
    guard_context.guard_namespace(sys.modules, name, found, "sys.modules")
    if found is None:
        raise BreakRequested("input-output", f"importing {name}, which is forbidden")
    if found is ABSENT:
        return None
    if not issubclass(type(found), types.ModuleType) or "__name__" not in vars(found):
        raise BreakRequested("input-output", f"importing {name}, which is no module")
    return found


_IMPORT = BUILTINS["__import__"]


def _missing_parts(package: object, full_name: str, names: Iterable[str]) -> Iterator[str]:
    """What `from package import names` has to load: modules of the package that it has not got. One
    that makes its attributes when they are asked for loads what it needs itself."""
    space = vars(package)
    if "__path__" in space and "__getattr__" not in space and type(package) is types.ModuleType:
        for name in names:
            part = f"{full_name}.{name}"
            if name == "*" or name in space or part in sys.modules:
                continue
            if importlib.util.find_spec(part) is not None:
                yield part


def _import_now(interpreter: Interpreter, name: str) -> BaseException:
    """What stands for importing a module that is not loaded: its failure, if it has to fail."""
    try:
        found = importlib.util.find_spec(name)
    except Exception as error:
        return ProgramRaised(error)
    if found is None:
        path = ObjectSource("sys.path", sys.path)
        interpreter.guard_context.guard(path, GuardKind.EQUALS_MATCH, [*sys.path])
        finders = ObjectSource("sys.meta_path", sys.meta_path)
        interpreter.guard_context.guard(finders, GuardKind.LENGTH, len(sys.meta_path))
        missing = ModuleNotFoundError(f"No module named {name!r}", name=name)
        return ProgramRaised(missing)
    return BreakRequested("input-output", f"importing {name}")


@opcode("IMPORT_FROM")
def import_from(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    module = frame.stack[-1]
    name = instruction.value
    try:
        value = load_attribute(interpreter, module, name)
    except ProgramRaised as raised:
        value = _loaded(interpreter, f"{module.__name__}.{name}")
        if value is None:
            raise ProgramRaised(_unknown_name(module, name)) from raised
        interpreter.guard_context.track(value, ObjectSource(value.__name__, value))
    frame.stack.append(value)


def _unknown_name(module: Any, name: str) -> ImportError:
    path = vars(module).get("__file__")
    message = f"cannot import name {name!r} from {module.__name__!r}"
    where = path if path is not None else "unknown location"
    return ImportError(f"{message} ({where})", name=module.__name__, path=path)


@opcode("IMPORT_STAR")
def import_star(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """`from module import *`, which only the code of a module holds: what `exec` runs."""
    take_all(interpreter, frame, frame.stack.pop())


def take_all(interpreter: Interpreter, frame: Frame, module: Any) -> None:
    """Give a module's public names to the namespace of the code that runs."""
    try:
        names = interpreter.attribute(module, "__all__")
    except ProgramRaised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        detail = f"all public names of {module.__name__}, which has no __all__"
        raise BreakRequested("unsupported-attribute", detail) from None
    for name in interpreter.native(list, native_iterable(interpreter, names)):
        store_item(interpreter, frame.names, name, interpreter.attribute(module, name))
