"""Expressions with other expressions, or numbers, in the place of their symbols."""

from __future__ import annotations

from collections.abc import Mapping

from braze.shapes.expr import (
    Atom,
    Expr,
    Extremum,
    FloorDiv,
    IntLike,
    Mod,
    Monomial,
    Symbol,
    as_expr,
    collect_terms,
    floor_div,
    maximum,
    minimum,
    modulo,
    symbols,
)


def substitute(value: IntLike, replacements: Mapping[Symbol, IntLike]) -> Expr:
    """The expression with symbols replaced, normalised anew."""
    expr = as_expr(value)
    if replacements.keys().isdisjoint(symbols(expr)):
        return expr
    if len(expr.terms) == 1 and expr.terms[0][1] == 1:
        monomial = expr.terms[0][0]
        if len(monomial) == 1 and type(monomial[0]) is Symbol:
            return as_expr(replacements[monomial[0]])
    total: list[tuple[Monomial, int]] = []
    for monomial, coefficient in expr.terms:
        if not monomial:
            total.append((monomial, coefficient))
            continue
        product = as_expr(_replaced(monomial[0], replacements))
        for atom in monomial[1:]:
            product = product * _replaced(atom, replacements)
        total += [(m, c * coefficient) for m, c in product.terms]
    return collect_terms(total)


def renamed(expr: Expr, names: Mapping[Symbol, IntLike]) -> Expr | None:
    """The expression with other symbols of the same names in the place of its symbols, as it is
    written; None where one is no symbol."""
    terms: list[tuple[Monomial, int]] = []
    for monomial, coefficient in expr.terms:
        atoms: list[Atom] = []
        for atom in monomial:
            made: Atom | IntLike | None
            if type(atom) is Symbol:
                made = names.get(atom, atom)
                if type(made) is not Symbol:
                    return None
            elif type(atom) is Extremum:
                return None
            else:
                parts = renamed(atom.dividend, names), renamed(atom.divisor, names)
                if parts[0] is None or parts[1] is None:
                    return None
                made = type(atom)(parts[0], parts[1])
            atoms.append(made)
        terms.append((tuple(atoms), coefficient))
    return Expr(tuple(terms))


def evaluate(value: IntLike, values: Mapping[Symbol, int]) -> int:
    """The integer that the expression is at the given symbols; KeyError for a missing one."""
    total = 0
    for monomial, coefficient in as_expr(value).terms:
        for atom in monomial:
            coefficient *= _number(atom, values)
        total += coefficient
    return total


# --- private -------------------------------------------------------------------------------------


def _replaced(atom: Atom, replacements: Mapping[Symbol, IntLike]) -> IntLike:
    if isinstance(atom, Symbol):
        return replacements.get(atom, atom)
    if isinstance(atom, Extremum):
        choose = maximum if atom.maximum else minimum
        return choose(*[substitute(operand, replacements) for operand in atom.operands])
    divide = floor_div if isinstance(atom, FloorDiv) else modulo
    return divide(substitute(atom.dividend, replacements), substitute(atom.divisor, replacements))


def _number(atom: Atom, values: Mapping[Symbol, int]) -> int:
    if isinstance(atom, Symbol):
        try:
            return values[atom]
        except KeyError:
            raise KeyError(f"no value for {atom}") from None
    if isinstance(atom, Extremum):
        return (max if atom.maximum else min)([evaluate(o, values) for o in atom.operands])
    dividend, divisor = evaluate(atom.dividend, values), evaluate(atom.divisor, values)
    return dividend % divisor if isinstance(atom, Mod) else dividend // divisor
