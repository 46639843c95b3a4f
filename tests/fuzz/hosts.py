"""Programs of a device with tensors of the host among those of the device.

v1 = torch.add(x, 0.5)     ->  v1 = torch.add(x, H(0.5))                     0-dim, on the host
z = T(2, 3, start=1)       ->  z = T(2, 3, start=1).cpu().to('cuda')         by way of it
                           or  z = T(2, 3, start=1).cpu()                    and left there
"""

from __future__ import annotations

import ast
import random
from dataclasses import replace

from tests.fuzz.program import Program

_NUMBERS = 0.3  # of a function's float constants
_COPIED, _LEFT = 0.15, 0.03  # of tensors that are made


def with_hosts(program: Program, device: str) -> Program:
    """The same program with some of its numbers and tensors there; device: of the others."""
    draw = random.Random(program.seed)
    moved = _Moved(draw, device)
    text = ast.unparse(moved.visit(ast.parse(program.text)))
    steps = tuple([ast.unparse(moved.visit(ast.parse(step))) for step in program.steps])
    text = f"from tests.fuzz.prelude import H\n{text}"
    return replace(program, text=text, steps=steps)


class _Moved(ast.NodeTransformer):
    def __init__(self, draw: random.Random, device: str) -> None:
        self._draw, self._device, self._depth = draw, device, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Numbers of its body; what arguments are by default stays."""
        self._depth += 1
        node.body = [self.visit(statement) for statement in node.body]
        self._depth -= 1
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """As it is."""
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """A number as a tensor, maybe."""
        if not self._depth or type(node.value) is not float or self._draw.random() > _NUMBERS:
            return node
        return ast.Call(ast.Name("H"), [node], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A new tensor by way of the host, maybe."""
        self.generic_visit(node)
        drawn = self._draw.random()
        if not (isinstance(node.func, ast.Name) and node.func.id == "T") or drawn > _COPIED:
            return node
        there = ast.Call(ast.Attribute(node, "cpu"), [], [])
        if drawn < _LEFT:
            return there
        return ast.Call(ast.Attribute(there, "to"), [ast.Constant(self._device)], [])
