"""Triton of reductions: what lanes start from, how they take a block, how they end.

Held rows are folded at once. Walked ones are folded lane by lane, a lane for each point of a
block, and the lanes at the end: long sums are sums of short ones, as exact as a tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from braze.codegen.triton.operators import HALVES, TYPES, cast_text, number_text
from braze.codegen.triton.scope import Dimensions, TritonScope, TritonTerm
from braze.ir.kernels.scalars import cast
from braze.ir.kernels.schedule import Accumulate
from braze.shapes.expr import as_expr

_LAST = 2**31 - 1  # behind every position, where indices have 32 bits
_LAST_WIDE = 2**63 - 1


@dataclass(slots=True)
class TritonFold:
    """One reduction of a pass; `axis` is that of the reduced dimension, `rows` the dimensions of
    its result. back: the row is walked from its end."""

    statement: Accumulate
    name: str
    scope: TritonScope
    axis: int
    rows: Dimensions
    everything: Dimensions
    back: bool = False

    @property
    def kind(self) -> str:
        """The kind, as it is on the values folded."""
        kind = self.statement.kind
        if self.statement.position is None and self.statement.dtype == torch.bool:
            return {"max": "any", "min": "all", "sum": "any", "prod": "all"}.get(kind, kind)
        return kind

    def held(self) -> TritonTerm:
        """The result over a held row."""
        values = self._values()
        return self._searched(*values) if self._is_search else self._finished(*values)

    def start(self) -> None:
        """The lanes before the loop."""
        shape = self.scope.shape(self.everything)
        starts = [self._neutral(), str(self._last)]
        types = [TYPES[self._value_dtype], self._position_type]
        for lane, value, kind in zip(self._lanes, starts, types):
            self.scope.lines[0].append(f"{lane} = tl.full({shape}, {value}, tl.{kind})")
        if self._is_ascending:  # so that a lane that takes nothing stands for its first point
            self.scope.lines[0].append(f"{self.name}_at += r_lane")
            self.scope.lines[0][-2] = f"{self.name}_at = tl.full({shape}, 0, tl.{types[1]})"

    def step(self) -> None:
        """A block folded into the lanes."""
        values = self._values()
        lanes = self._lanes
        if self._is_search:
            name = f"bz_{self.kind}_later" if self._is_ascending else f"bz_{self.kind}"
            text = f"{lanes[0]}, {lanes[1]} = {name}({', '.join([*lanes, *values])})"
        else:
            text = f"{lanes[0]} = {self._combined(lanes[0], values[0])}"
        self.scope.lines[1].append(text)

    def finish(self) -> TritonTerm:
        """The result, behind the loop."""
        return self._finished(*self._lanes)

    def joined(self, parts: str) -> TritonTerm:
        """The result, from those of the parts of a row; their sum in float64, as that of partial
        sums is."""
        if self.kind != "sum" or self._value_dtype != torch.float32:
            return self._finished(parts)
        text = f"tl.sum({parts}.to(tl.float64), {self.axis}).to(tl.float32)"
        return self.scope.assign(self._kept(text), self.rows)

    @property
    def neutral(self) -> str:
        """What may be folded, too, and changes nothing."""
        return self._neutral()

    # --- private -----------------------------------------------------------------------------

    @property
    def _is_search(self) -> bool:
        return self.statement.position is not None

    @property
    def _is_ascending(self) -> bool:
        """Whether a lane meets positions in their order, so that of equals it has the first."""
        loops = next(d.loops for d in self.scope.tiling.dimensions if d.walked)
        position = self.statement.position
        plain = len(loops) == 1 and position == as_expr(loops[0][0])
        return position is not None and plain and not self.back

    @property
    def _lanes(self) -> list[str]:
        return [self.name, f"{self.name}_at"] if self._is_search else [self.name]

    @property
    def _value_dtype(self) -> torch.dtype:
        dtype = self.statement.body.dtype if self._is_search else self.statement.dtype
        if dtype in HALVES:
            return torch.float32
        return torch.int32 if dtype == torch.bool else dtype

    @property
    def _position_type(self) -> str:
        return "int64" if self.scope.tiling.wide else "int32"

    @property
    def _last(self) -> int:
        return _LAST_WIDE if self.scope.tiling.wide else _LAST

    def _values(self) -> list[str]:
        """The block's values, with a neutral one where there is no point; then the positions."""
        scope, dtype = self.scope, self._value_dtype
        body = cast(self.statement.body, dtype)
        if self.statement.dtype == torch.bool and not self._is_search:
            body = cast(cast(self.statement.body, torch.bool), dtype)
        found = [self._masked(scope.broadcast(scope.emit(body), self.everything), self._neutral())]
        if self.statement.position is not None:
            place = scope.index(self.statement.position)
            text = f"({place.text}).to(tl.{self._position_type})"
            text = f"tl.broadcast_to({text}, {scope.shape(self.everything)})"
            found.append(self._masked(text, str(self._last)))
        return found

    def _masked(self, text: str, other: str) -> str:
        mask = self.scope.mask(self.everything - self.rows)
        return (
            self.scope.assign(f"tl.where({mask}, {text}, {other})", self.everything).text
            if mask
            else text
        )

    def _neutral(self) -> str:
        dtype, kind = self._value_dtype, self.kind
        if kind in ("sum", "prod"):
            return number_text((float if dtype.is_floating_point else int)(kind == "prod"))
        if kind in ("any", "all"):
            return number_text(int(kind == "all"))
        greatest = kind in ("max", "argmax")
        if dtype.is_floating_point:
            return number_text(float("-inf" if greatest else "inf"))
        information = torch.iinfo(dtype)
        return number_text(information.min if greatest else information.max)

    def _combined(self, lane: str, value: str) -> str:
        name = self._combiner
        if self.kind == "sum":
            return f"{lane} + {value}"
        if self.kind == "prod":
            return f"{lane} * {value}"
        return f"{name}({lane}, {value})"

    @property
    def _combiner(self) -> str:
        table = {"max": "maximum", "any": "maximum", "min": "minimum", "all": "minimum"}
        name = table.get(self.kind, "product")
        floats = self._value_dtype.is_floating_point
        return f"bz_{name}" if floats or name == "product" else f"tl.{name}"

    def _finished(self, *values: str) -> TritonTerm:
        scope, dtype = self.scope, self._value_dtype
        if self._is_search:
            text = f"tl.reduce(({values[0]}, {values[1]}), {self.axis}, bz_{self.kind})[1]"
            return scope.assign(f"{self._kept(text)}.to(tl.int64)", self.rows)
        if self.kind == "sum":
            text = f"tl.sum({values[0]}, {self.axis})"
        elif self._combiner.startswith("tl."):
            text = f"tl.{self._combiner[3:6]}({values[0]}, {self.axis})"
        else:
            text = f"tl.reduce({values[0]}, {self.axis}, {self._combiner})"
        text = self._kept(text)
        if self.statement.dtype == torch.bool:
            return scope.assign(f"({text} != 0)", self.rows)
        if dtype.itemsize < 4:
            text = cast_text(text, torch.int32, dtype)
        return scope.assign(text, self.rows)

    def _searched(self, value: str, place: str) -> TritonTerm:
        """The first position of a held row's extreme: NaN where there is any."""
        scope, kind = self.scope, "maximum" if self.kind == "argmax" else "minimum"
        floats = self._value_dtype.is_floating_point
        if floats:
            text = f"tl.reduce({value}, {self.axis}, bz_{kind})"
        else:
            text = f"tl.{kind[:3]}({value}, {self.axis})"
        extreme = scope.assign(self._kept(text), self.rows)
        found = f"({value} == {extreme.text})" + (f" | ({value} != {value})" if floats else "")
        at = scope.assign(f"tl.where({found}, {place}, {self._last})", self.everything)
        first = self._kept(f"tl.min({at.text}, {self.axis})")
        return scope.assign(f"{first}.to(tl.int64)", self.rows)

    def _kept(self, text: str) -> str:
        """The folded text with its axis of length one, where rows are an axis."""
        if not self.rows:
            return text
        return f"tl.expand_dims({text}, {self.axis})"
