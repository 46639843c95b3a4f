"""Diagrams of boxes and arrows as SVG text, laid out on a grid; the same input gives the same text.

A box stands at a column and a row; an arrow leads from one box to another by the shortest of the
straight and the right-angled ways. Colours are readable on light and dark pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

CELL_WIDTH, CELL_HEIGHT = 214, 96
BOX_WIDTH, LINE_HEIGHT, MARGIN = 156, 15, 14
FONT = "font-family='Helvetica, Arial, sans-serif'"
# kind of box -> fill, border.
COLOURS = {
    "data": ("#eef4fb", "#3b6ea8"),
    "stage": ("#fdf1e3", "#b8701f"),
    "outside": ("#f1f1f1", "#777777"),
    "kernel": ("#e9f6ec", "#2f8a4c"),
}


@dataclass(frozen=True)
class Box:
    """A box. at: column and row, from 0, fractions allowed. text: below the title, a line each."""

    name: str
    at: tuple[float, float]
    title: str
    text: tuple[str, ...] = ()
    kind: str = "data"

    @property
    def middle(self) -> tuple[float, float]:
        column, row = self.at
        return (
            MARGIN + column * CELL_WIDTH + BOX_WIDTH / 2,
            MARGIN + row * CELL_HEIGHT + (CELL_HEIGHT - 24) / 2,
        )

    @property
    def height(self) -> float:
        return 28 + LINE_HEIGHT * len(self.text)


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by name. dashed: for what happens at a later time."""

    start: str
    end: str
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Picture:
    """A diagram. title: what it shows, for readers who do not see it."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def draw(picture: Picture) -> str:
    """The picture as the text of an SVG file."""
    boxes = {box.name: box for box in picture.boxes}
    width = max(box.middle[0] for box in picture.boxes) + BOX_WIDTH / 2 + MARGIN
    top = min(box.middle[1] - box.height / 2 for box in picture.boxes) - MARGIN
    height = max(box.middle[1] + box.height / 2 for box in picture.boxes) + MARGIN - top
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 {top:g} {width:g} {height:g}' "
        f"width='{width:g}' height='{height:g}' role='img' {FONT}>",
        f"<title>{escape(picture.title)}</title>",
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7.5' refY='4' markerWidth='8' "
        "markerHeight='8' orient='auto-start-reverse'><path d='M0 0 L8 4 L0 8 z' "
        "fill='#555'/></marker></defs>",
        f"<rect y='{top:g}' width='{width:g}' height='{height:g}' rx='8' fill='#ffffff'/>",
    ]
    lines += [_arrow(arrow, boxes[arrow.start], boxes[arrow.end]) for arrow in picture.arrows]
    lines += [_box(box) for box in picture.boxes]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _box(box: Box) -> str:
    x, y = box.middle
    left, top = x - BOX_WIDTH / 2, y - box.height / 2
    fill, border = COLOURS[box.kind]
    rows = [
        f"<rect x='{left:g}' y='{top:g}' width='{BOX_WIDTH}' height='{box.height:g}' rx='5' "
        f"fill='{fill}' stroke='{border}' stroke-width='1.4'/>",
        _text(x, top + 19, box.title, "font-size='13' font-weight='600' fill='#222'"),
    ]
    rows += [
        _text(x, top + 19 + LINE_HEIGHT * n, line, "font-size='11' fill='#444'")
        for n, line in enumerate(box.text, 1)
    ]
    return "\n".join(rows)


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' text-anchor='middle' {style}>{escape(text)}</text>"


def _arrow(arrow: Arrow, start: Box, end: Box) -> str:
    (x0, y0), (x1, y1) = _ends(start, end)
    style = "stroke='#555' stroke-width='1.4' fill='none' marker-end='url(#tip)'"
    if arrow.dashed:
        style += " stroke-dasharray='5 4'"
    lines = [f"<path d='M{x0:g} {y0:g} L{x1:g} {y1:g}' {style}/>"]
    if arrow.label:
        x, y = (x0 + x1) / 2, (y0 + y1) / 2 - (9 if y0 == y1 else 0)
        half = 3.1 * len(arrow.label) + 3
        lines.append(
            f"<rect x='{x - half:g}' y='{y - 8:g}' width='{2 * half:g}' height='15' "
            "fill='#ffffff' fill-opacity='0.9'/>"
        )
        lines.append(_text(x, y + 3.5, arrow.label, "font-size='10.5' fill='#333'"))
    return "\n".join(lines)


def _ends(start: Box, end: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where an arrow leaves one box and meets the other: sides that face each other."""
    (x0, y0), (x1, y1) = start.middle, end.middle
    if start.at[0] != end.at[0] and abs(start.at[1] - end.at[1]) < 1:
        side = BOX_WIDTH / 2 * (1 if x1 > x0 else -1)
        return (x0 + side, y0), (x1 - side, y1)
    down = 1 if y1 > y0 else -1
    return (x0, y0 + down * start.height / 2), (x1, y1 - down * end.height / 2)
