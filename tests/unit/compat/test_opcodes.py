"""The table of opcodes says what `dis` says, on every Python that is here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from braze.compat.python import opcodes as table
from braze.compat.python.bytecode import decode
from braze.compat.python.bytecode_versions import KNOWN_VERSIONS, refuse_free_threading
from braze.compat.python.opcodes import StackEffect, opcodes
from tests.interpreters import check_under
from tests.unit.compat.opcodes_check import differences

_CHECK = Path(__file__).parent / "opcodes_check.py"
_IDS = [f"{major}.{minor}" for major, minor in KNOWN_VERSIONS]


def test_rows_are_as_dis_says() -> None:
    assert list(differences()) == []


@pytest.mark.parametrize("version", _IDS)
def test_rows_under_other_versions(version: str) -> None:
    check_under(version, _CHECK)


@pytest.mark.parametrize("version", KNOWN_VERSIONS, ids=_IDS)
def test_each_name_has_one_row(version: tuple[int, int]) -> None:
    names = Counter(row.name for row in table._ROWS if row.first <= version <= row.last)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 90


def test_meanings_have_the_effect_of_their_instruction() -> None:
    for version in KNOWN_VERSIONS:
        rows = opcodes(version)
        for row in rows.values():
            same = rows.get(row.meaning)
            if same is not None and row.value is None:
                assert shape(row.effect) == shape(same.effect), (version, row.name)


def shape(effect: StackEffect) -> list[tuple[int, int]]:
    return [(effect.pops(arg), effect.pushes(arg)) for arg in range(8)]


def test_constants_in_instructions_are_decoded_as_constants() -> None:
    space: dict[str, Any] = {}  # a text, since pytest writes assertions of its own
    exec("def asks(x, flag):\n    assert flag\n    return x[1] + 3, None", space)
    found = decode(space["asks"].__code__).instructions
    loaded = [item.value for item in found if item.name == "LOAD_CONST"]
    assert AssertionError in loaded and 1 in loaded and 3 in loaded and None in loaded
    assert [item.name for item in found].count("BINARY_SUBSCR") == 1
    assert "LOAD_FAST_BORROW" not in {item.name for item in found}


def test_free_threaded_builds_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"global interpreter lock.*python3\.14t"):
        refuse_free_threading("t")
    refuse_free_threading("")
    refuse_free_threading("d")
