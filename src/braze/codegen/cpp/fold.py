"""C++ of reductions: what an accumulator starts from, how it takes a value, how it ends.

Sums of floats are exact to within what eager's cascade gives: up to `BLOCK` values are added up in
their own type (in as many lanes as the vector has), blocks of more of them in a wider type.
"""

from __future__ import annotations

import torch

from braze.codegen.cpp.operators import TYPES, literal_text
from braze.frozen import frozen
from braze.ir.kernels.loops import Literal

BLOCK = 1024

WIDER: dict[torch.dtype, str] = {torch.float32: "double", torch.float64: "long double"}


@frozen
class CppFold:
    """start: initial value; combine: template of accumulator {0} and value {1}; clause: OpenMP's
    reduction operator, the one that this fold is in a vector loop."""

    start: str
    combine: str
    clause: str


def fold_of(kind: str, dtype: torch.dtype) -> CppFold:
    """The fold of a kind other than argmax and argmin."""
    kind = _on_bool(kind) if dtype == torch.bool else kind
    if kind in ("sum", "prod"):
        start = literal_text(Literal(0 if kind == "sum" else 1, dtype))
        operator = "+" if kind == "sum" else "*"
        return CppFold(start, f"{{0}} = ({TYPES[dtype].value})({{0}} {operator} {{1}})", operator)
    if kind in ("any", "all"):
        operator = "|" if kind == "any" else "&"
        return CppFold("0" if kind == "any" else "1", f"{{0}} = {{0}} {operator} {{1}}", operator)
    sign = ">" if kind == "max" else "<"
    start = _worst(kind, dtype)
    return CppFold(start, f"{{0}} = {{1}} {sign} {{0}} ? {{1}} : {{0}}", kind)


def keeps_nan(kind: str, dtype: torch.dtype) -> bool:
    """Whether NaN must be tracked beside the fold: comparisons lose it."""
    return kind in ("max", "min") and dtype.is_floating_point


def needs_blocks(kind: str, dtype: torch.dtype) -> bool:
    """Whether long folds are cut into blocks whose results are folded in a wider type."""
    return kind in ("sum", "prod") and dtype in WIDER


def lane_combine(kind: str, dtype: torch.dtype) -> str:
    """The combine template where each lane folds by itself: NaN is kept in the lane."""
    if not keeps_nan(kind, dtype):
        return fold_of(kind, dtype).combine
    sign = ">" if kind == "max" else "<"
    return f"{{0}} = ({{1}} {sign} {{0}}) | ({{1}} != {{1}}) ? {{1}} : {{0}}"


def takes(kind: str, dtype: torch.dtype, ascending: bool) -> str:
    """For argmax and argmin, whether value {1} at {3} replaces best {0} at {2} (-1: none yet);
    `ascending`: positions are met in their order, so that of equals the first is there already."""
    sign = ">" if kind == "argmax" else "<"
    text = f"({{2}} < 0) | ({{1}} {sign} {{0}})"
    earlier = "" if ascending else " | ({3} < {2})"
    if not ascending:
        text += " | (({1} == {0}) & ({3} < {2}))"
    if dtype.is_floating_point:
        text += f" | (({{1}} != {{1}}) & (({{0}} == {{0}}){earlier}))"
    return text


# --- private ---------------------------------------------------------------------------------


def _on_bool(kind: str) -> str:
    return {"max": "any", "min": "all", "sum": "any", "prod": "all"}.get(kind, kind)


def _worst(kind: str, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return literal_text(Literal(float("-inf" if kind == "max" else "inf"), dtype))
    information = torch.iinfo(dtype)
    return literal_text(Literal(information.min if kind == "max" else information.max, dtype))
