"""Index expressions as text: what both generators' languages share, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from braze.frozen import frozen
from braze.shapes.expr import Expr, Extremum, FloorDiv, Mod, Symbol, bounds

Names = Mapping[Symbol, str]


@final
@frozen
class IndexSyntax:
    """How a language writes 64-bit integers.

    number, product: of a coefficient, `{0}`, alone and with its factors, `{1}`.
    quotient: the operator that divides two numbers that are not negative.
    """

    number: str
    product: str
    quotient: str
    minimum: str
    maximum: str

    def text(self, expr: Expr, names: Names) -> str:
        """The expression; `names` gives size symbols their names, loop symbols keep theirs."""
        parts = []
        for monomial, coefficient in expr.terms or (((), 0),):
            factors = " * ".join([self._atom(atom, names) for atom in monomial])
            if not factors:
                factors = self.number.format(coefficient)
            elif coefficient != 1:
                factors = self.product.format(coefficient, factors)
            parts.append(factors)
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"

    def operand(self, expr: Expr, names: Names) -> str:
        """The expression as an operand of a division: a product stands in parentheses."""
        text = self.text(expr, names)
        is_product = len(expr.terms) == 1 and (len(expr.terms[0][0]) > 1 or expr.terms[0][1] != 1)
        return f"({text})" if is_product and expr.terms[0][0] else text

    def _atom(self, atom: Symbol | FloorDiv | Mod | Extremum, names: Names) -> str:
        if isinstance(atom, Symbol):
            return names.get(atom, atom.name)
        if isinstance(atom, Extremum):
            function = self.maximum if atom.maximum else self.minimum
            text = self.text(atom.operands[0], names)
            for operand in atom.operands[1:]:
                text = f"{function}({text}, {self.text(operand, names)})"
            return text
        dividend, divisor = self.operand(atom.dividend, names), self.operand(atom.divisor, names)
        low, _ = bounds(atom.dividend)
        quotient = isinstance(atom, FloorDiv)
        if low is not None and low >= 0:
            return f"({dividend} {self.quotient if quotient else '%'} {divisor})"
        return f"{'bz_floor_div' if quotient else 'bz_floor_mod'}({dividend}, {divisor})"
