"""The parameters of a Triton kernel to which it writes: read from its source.

    def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)      # of no pointer
        pointers = out_ptr + offsets                                  # of out_ptr
        tl.store(pointers, tl.load(x_ptr + offsets))                  # writes to out_ptr

An abstract interpretation of the syntax tree: for each variable the parameters that its value may
point into, whatever path is taken (flow-insensitive, so an upper bound). What memory holds points
nowhere: a load ends the chain. Functions of `@triton.jit` that the kernel calls are read as well.

Where the source is not at hand, or a pointer goes where nobody can follow (an unknown function, an
extern or assembler call), every parameter that may be meant counts as written.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from typing import Any, TypeAlias, final

from braze.compat.triton.kernels import TritonKernel, is_device_function

Origins: TypeAlias = frozenset[str]
_NOWHERE: Origins = frozenset()


def written_parameters(kernel: TritonKernel) -> frozenset[str] | None:
    """The names of the parameters that a kernel may write through; None where nothing is known."""
    if kernel.writes_unseen:
        return None
    tree = _parsed(kernel.function, kernel.text)
    if tree is None:
        return None
    reading = _Reading(kernel.function, tree, 0)
    reading.follow({name: frozenset({name}) for name in kernel.signature.parameters})
    read_only = {n for n, p in kernel.signature.parameters.items() if _is_const(p.annotation)}
    return (reading.written - read_only) | kernel.written


# --- private -------------------------------------------------------------------------------------

_DEEPEST = 12  # functions that call each other
# Functions of `triton.language` and methods of blocks and descriptors, by their last names.
_LOADS = frozenset({"load", "gather", "load_tensor_descriptor"})
_WRITES = ("store", "atomic", "scatter", "reduce_add", "inline_asm", "extern", "copy", "tma")
_PURE_NAMES = frozenset({"range", "min", "max", "abs", "len", "print", "isinstance", "type"})


def _is_const(annotation: object) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text in ("const", "tl.const") or text.startswith("*k")


def _parsed(function: types.FunctionType, text: str | None) -> ast.FunctionDef | None:
    try:
        source = inspect.getsource(function) if text is None else text
        body = ast.parse(textwrap.dedent(source)).body
    except (OSError, TypeError, SyntaxError):
        return None
    found = body[0] if body else None
    return found if isinstance(found, ast.FunctionDef) else None


@final
class _Reading:
    """One function as it is read. origins: of its variables. returned: of what it returns."""

    def __init__(self, function: types.FunctionType, tree: ast.FunctionDef, depth: int) -> None:
        self.tree, self.depth = tree, depth
        self.names = _names_around(function)
        self.origins: dict[str, Origins] = {}
        self.written: Origins = _NOWHERE
        self.returned: Origins = _NOWHERE

    def follow(self, parameters: dict[str, Origins]) -> None:
        """Walk over the body until no variable points into more."""
        self.origins.update(parameters)
        before: Any = None
        while before != (state := (dict(self.origins), self.written, self.returned)):
            before = state
            for statement in self.tree.body:
                self._statement(statement)

    def _statement(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            if node.value is not None:
                self._assign(node.target, node.value)
        elif isinstance(node, ast.For):
            self._give(node.target, self._expression(node.iter))
        elif isinstance(node, ast.Return) and node.value is not None:
            self.returned |= self._expression(node.value)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.withitem):
                found = self._expression(child.context_expr)
                if child.optional_vars is not None:
                    self._give(child.optional_vars, found)
            elif isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self._expression(child)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if (
            isinstance(target, (ast.Tuple, ast.List))
            and isinstance(value, (ast.Tuple, ast.List))
            and len(target.elts) == len(value.elts)
        ):
            for one, given in zip(target.elts, value.elts):
                self._assign(one, given)
            return
        self._give(target, self._expression(value))

    def _give(self, target: ast.expr, origins: Origins) -> None:
        if isinstance(target, ast.Name):
            self.origins[target.id] = self.origins.get(target.id, _NOWHERE) | origins
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._give(one, origins)
        elif isinstance(target, (ast.Starred, ast.Attribute, ast.Subscript)):
            self._give(target.value, origins)  # an attribute: of an aggregate

    def _expression(self, node: ast.AST) -> Origins:
        """What a value may point into."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, _NOWHERE)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.NamedExpr):
            self._assign(node.target, node.value)
        if isinstance(node, ast.comprehension):
            self._give(node.target, self._expression(node.iter))
        if isinstance(node, ast.Compare):
            for child in ast.iter_child_nodes(node):
                self._expression(child)
            return _NOWHERE
        return _union([self._expression(child) for child in _evaluated(node)])

    def _call(self, node: ast.Call) -> Origins:
        arguments = [*node.args, *[keyword.value for keyword in node.keywords]]
        given = [self._expression(argument) for argument in arguments]
        function = node.func
        found = self._object(function)
        if found is None and isinstance(function, ast.Attribute):
            return self._named(function.attr, [self._expression(function.value), *given])
        if is_device_function(found) and not _is_tritons(found.fn):
            return self._inlined(found, node, given)
        name = getattr(found, "__name__", getattr(function, "id", ""))
        if _is_tritons(found) or (found is None and name in _PURE_NAMES):
            return self._named(name, given)
        if found is not None and getattr(found, "__module__", "") == "builtins":
            return _union(given)
        self.written |= _union(given)  # an unknown function, or one that is a parameter
        return _union(given)

    def _named(self, name: str, given: list[Origins]) -> Origins:
        """A function of Triton's, or a method of a block, by what it is called."""
        if any(part in name for part in _WRITES):
            self.written |= _union(given)
            return _NOWHERE if "atomic" in name else _union(given)
        return _NOWHERE if name in _LOADS else _union(given)

    def _inlined(self, callee: Any, node: ast.Call, given: list[Origins]) -> Origins:
        tree = _parsed(callee.fn, getattr(callee, "src", None))
        everything = _union(given)
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if tree is None or self.depth >= _DEEPEST or starred:
            self.written |= everything
            return everything
        names = [p.arg for p in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
        keywords = [keyword.arg for keyword in node.keywords]
        if None in keywords or tree.args.vararg is not None:
            self.written |= everything
            return everything
        bound = dict(zip([*names[: len(node.args)], *map(str, keywords)], given))
        reading = _Reading(callee.fn, tree, self.depth + 1)
        reading.follow(bound)
        self.written |= reading.written
        return reading.returned

    def _object(self, node: ast.expr) -> Any:
        """What a name, or a path of attributes that begins with one, is outside of the function;
        None for all that depends on its variables."""
        if isinstance(node, ast.Name):
            return None if node.id in self.origins else self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            if isinstance(owner, (types.ModuleType, type)):
                return getattr(owner, node.attr, None)
        return None


def _names_around(function: types.FunctionType) -> dict[str, object]:
    names = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not yet bound
            names.pop(name, None)
    return names


def _evaluated(node: ast.AST) -> list[ast.AST]:
    """The parts of an expression, loops of a comprehension first: they bind its names."""
    parts = list(ast.iter_child_nodes(node))
    return sorted(parts, key=lambda part: not isinstance(part, ast.comprehension))


def _is_tritons(value: object) -> bool:
    module = getattr(value, "__module__", None) or ""
    return module.startswith(("triton.language", "triton.runtime.jit"))


def _union(parts: list[Origins]) -> Origins:
    return frozenset().union(*parts)
