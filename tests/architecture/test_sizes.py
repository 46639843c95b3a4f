"""The tails: largest file, longest function. Medians hardly tell good code from bad."""

from __future__ import annotations

import statistics

import pytest

from tests.architecture.tree import SourceFile, length, python_files, source_files

FILE_LINES = 600
MEDIAN_FILE_LINES = 250
FUNCTION_LINES = 60
SHORT_FUNCTION_LINES = 30
SHORT_SHARE = 0.9


@pytest.mark.parametrize("file", python_files(), ids=lambda file: file.name)
def test_files_are_short(file: SourceFile) -> None:
    assert file.lines <= FILE_LINES, f"{file.name} has {file.lines} lines: split it by subject"


@pytest.mark.parametrize("file", python_files(), ids=lambda file: file.name)
def test_functions_are_short(file: SourceFile) -> None:
    for function in file.functions():
        lines = length(function)
        place = f"{file.name}:{function.lineno} {function.name}"
        assert lines <= FUNCTION_LINES, f"{place} has {lines} lines"


def test_most_functions_are_very_short() -> None:
    lengths = [length(function) for file in source_files() for function in file.functions()]
    short = sum(lines < SHORT_FUNCTION_LINES for lines in lengths)
    assert short >= SHORT_SHARE * len(lengths), f"{short} of {len(lengths)}"


def test_the_median_file_is_short() -> None:
    median = statistics.median(file.lines for file in source_files())
    assert median <= MEDIAN_FILE_LINES, median
