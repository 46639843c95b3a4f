"""Comparisons of index expressions that need no code: their symbols' ranges decide them."""

from __future__ import annotations

from braze.shapes.expr import Expr, bounds


def decide_comparison(op: str, left: Expr, right: Expr) -> bool | None:
    """What the comparison always is, by the symbols' ranges, or None."""
    low, high = bounds(left - right)
    above, below = low is not None and low >= 0, high is not None and high <= 0
    over, under = low is not None and low > 0, high is not None and high < 0
    facts = {
        "ge": (above, under),
        "gt": (over, below),
        "le": (below, over),
        "lt": (under, above),
        "eq": (above and below, over or under),
        "ne": (over or under, above and below),
    }
    holds, fails = facts[op]
    return True if holds else False if fails else None
