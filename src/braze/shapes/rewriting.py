"""Symbols that are written as something else, kept so that none stands in what others are written
as.

    write s1 as 2*s0, then s0 as 4:     s1: 8, s0: 4

Which expressions a symbol stands in is indexed: what a new one costs does not depend on how many
symbols there are.
"""

from __future__ import annotations

from typing import final

from braze.shapes.expr import Expr, Symbol, symbols
from braze.shapes.substitution import substitute


@final
class Rewriting:
    """What symbols are written as. by_symbol: read it, and change it by `write` alone.

    version: rises with each change.
    """

    __slots__ = ("_due", "_meanings", "_readers", "by_symbol", "version")

    def __init__(self) -> None:
        self.by_symbol: dict[Symbol, Expr] = {}
        self.version = 0
        # Written since the last `settle`; in what others are written as they may stand still.
        self._due: list[Symbol] = []
        # Of each symbol those whose expression it stands in, or once stood in.
        self._readers: dict[Symbol, dict[Symbol, None]] = {}
        self._meanings: dict[Symbol, dict[Symbol, None]] = {}

    def write(self, symbol: Symbol, expr: Expr) -> None:
        """Write a symbol as something else from now on."""
        self._put(symbol, expr)
        self._due.append(symbol)

    def _put(self, symbol: Symbol, expr: Expr) -> None:
        self.by_symbol[symbol] = expr
        self.version += 1
        for read in symbols(expr):
            self._readers.setdefault(read, {})[symbol] = None

    def note_meaning(self, symbol: Symbol, meaning: Expr) -> None:
        """What `means` tells of: the symbol means an expression of others."""
        for read in symbols(meaning):
            self._meanings.setdefault(read, {})[symbol] = None

    def means(self, changed: dict[Symbol, None]) -> dict[Symbol, None]:
        """The symbols whose meaning holds one of these."""
        return {s: None for read in changed for s in self._meanings.get(read, ())}

    def written_with(self, symbol: Symbol) -> list[Symbol]:
        """The symbol, and all that are written as an expression of it, however far."""
        found, at = {symbol: None}, [symbol]
        while at:
            for reader in self._readers.get(at.pop(), ()):
                if reader not in found:
                    found[reader] = None
                    at.append(reader)
        return list(found)

    def settle(self) -> dict[Symbol, None]:
        """Leave no symbol that is written as something else in what others are written as. Gives
        the symbols that are written otherwise now."""
        changed: dict[Symbol, None] = {}
        due, self._due = self._due, []
        for symbol in due:
            expr = self.by_symbol[symbol]
            named = symbols(expr)
            known = {s: self.by_symbol[s] for s in named if s in self.by_symbol and s != symbol}
            if known:
                expr = substitute(expr, known)
                self._put(symbol, expr)
            changed[symbol] = None
            for reader in self._readers.pop(symbol, ()):
                if reader != symbol:
                    self._put(reader, substitute(self.by_symbol[reader], {symbol: expr}))
                    changed[reader] = None
        return changed
