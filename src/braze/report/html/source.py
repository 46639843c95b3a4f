"""The user's source in the HTML report: what became of each line, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

AROUND = 3  # lines that are shown before and behind one that something is known of
_WEIGHT = {"broke": 2, "eager": 1, "compiled": 0}

# (state, note) of a line.
Notes = dict[int, dict[str, str]]


def source_files(
    lines: Sequence[Mapping[str, Any]],
    eager_calls: Sequence[Mapping[str, Any]],
    takes: Callable[[str], bool],
) -> list[dict[str, Any]]:
    """The files that compiles were of, those with graph breaks first. takes: whether a text still
    fits into the page."""
    notes: dict[str, Notes] = {}
    for line in lines:
        _note_compile(line, notes)
    for left in eager_calls:
        for call in left["left_to_eager"]:
            _note(notes, call["origin"], "eager", call["text"])
    began = min((line["began"] for line in lines), default=0.0)
    found = [_file(name, noted, began, takes) for name, noted in notes.items()]
    return sorted(found, key=lambda file: (-file["broke"], -file["eager"], -file["compiled"]))


# --- private ---------------------------------------------------------------------------------


def _note_compile(line: Mapping[str, Any], notes: dict[str, Notes]) -> None:
    kernels: dict[str, list[str]] = {}
    for kernel in line["kernels"]:
        name, places = kernel["name"], kernel["places"]
        for place in places:
            kernels.setdefault(place, []).append(name)
    captured = [text["text"] for text in line.get("texts", []) if text["kind"] == "lines"]
    for place in dict.fromkeys([*kernels, *"\n".join(captured).splitlines()]):
        names = ", ".join(dict.fromkeys(kernels.get(place, ())))
        _note(notes, place, "compiled", f"kernels {names}" if names else "")
    if broke := line["break"]:
        reason = f"{broke['reason']} [{broke['code']}] {broke['hint']}".rstrip()
        _note(notes, broke["origin"], "broke", reason)
    if line["raised"]:
        place, _, reason = line["raised"].partition(": ")
        _note(notes, place, "eager", f"raises: {reason}")
    if line["once"]:
        _note(notes, line["origin"], "eager", line["once"])


def _note(notes: dict[str, Notes], place: str, state: str, note: str) -> None:
    """Note what became of `file:line`, which something may follow behind a space."""
    file, _, rest = place.rpartition(":")
    number = rest.split(" ")[0]
    if file and number.isdigit() and int(number):
        states = notes.setdefault(file, {}).setdefault(int(number), {})
        known = states.get(state, "")
        if note not in known:
            states[state] = f"{known}; {note}" if known else note
        states.setdefault(state, "")


def _file(name: str, noted: Notes, began: float, takes: Callable[[str], bool]) -> dict[str, object]:
    text, problem = _read(name, began)
    source = text.splitlines()
    wanted = sorted({n for line in noted for n in range(line - AROUND, line + AROUND + 1)
                     if 0 < n <= len(source) or n in noted})  # fmt: skip
    rows, last = [], 0
    for number in wanted:
        states = noted.get(number, {})
        state = max(states, key=_WEIGHT.__getitem__, default="")
        said = [note for note in states.values() if note]
        line = source[number - 1] if number <= len(source) else ""
        if not takes(line + "".join(said) + 120 * "."):
            problem = "the page is full: lines are left out"
            break
        row = {"number": number, "state": state, "text": line, "notes": said}
        rows.append({**row, "gap": bool(last) and number > last + 1})
        last = number
    counts = {state: sum(state in states for states in noted.values()) for state in _WEIGHT}
    return {"name": name, "rows": rows, "problem": problem, **counts}


def _read(name: str, began: float) -> tuple[str, str]:
    """A file's text, and what is to be said of it."""
    path = Path(name)
    try:
        changed = path.stat().st_mtime > began
        return path.read_text(), "the file was changed since" if changed else ""
    except (OSError, ValueError):
        return "", "its source is not at hand"
