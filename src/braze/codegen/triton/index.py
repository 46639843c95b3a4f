"""Index expressions as Triton text."""

from __future__ import annotations

from collections.abc import Mapping

from braze.shapes.expr import Expr, Extremum, FloorDiv, Mod, Symbol, bounds


def index_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """The expression; `names` gives size symbols their names, loop symbols keep theirs."""
    if not expr.terms:
        return "0"
    parts = []
    for monomial, coefficient in expr.terms:
        factors = [_atom_text(atom, names) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(str(coefficient))
        parts.append(" * ".join(factors))
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"


def operand_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """The expression as an operand of a division: a product stands in parentheses."""
    text = index_text(expr, names)
    is_product = len(expr.terms) == 1 and (len(expr.terms[0][0]) > 1 or expr.terms[0][1] != 1)
    return f"({text})" if is_product and expr.terms[0][0] else text


def _atom_text(atom: Symbol | FloorDiv | Mod | Extremum, names: Mapping[Symbol, str]) -> str:
    if isinstance(atom, Symbol):
        return names.get(atom, atom.name)
    if isinstance(atom, Extremum):
        function = "tl.maximum" if atom.maximum else "tl.minimum"
        text = index_text(atom.operands[0], names)
        for operand in atom.operands[1:]:
            text = f"{function}({text}, {index_text(operand, names)})"
        return text
    dividend, divisor = operand_text(atom.dividend, names), operand_text(atom.divisor, names)
    low, _ = bounds(atom.dividend)
    quotient = isinstance(atom, FloorDiv)
    if low is not None and low >= 0:
        return f"({dividend} {'//' if quotient else '%'} {divisor})"
    return f"{'bz_floor_div' if quotient else 'bz_floor_mod'}({dividend}, {divisor})"
