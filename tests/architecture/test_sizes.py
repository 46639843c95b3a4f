"""The tails: largest file, longest function. Medians hardly tell good code from bad."""

from __future__ import annotations

import statistics

from tests.architecture.tree import length, listed, python_files, source_files

# Beyond these, ask whether two concepts live there; where it is one, it stays whole, with a row in
# the list of exceptions. Beyond the second number of lines there is no exception.
FILE_LINES = 600
MEDIAN_FILE_LINES = 250
FUNCTION_LINES = 60
SHORT_FUNCTION_LINES = 30
SHORT_SHARE = 0.9


MOST_FILE_LINES = 800
# file -> why it is one concept.
LONG_FILES: dict[str, str] = {
    "src/braze/capture/state/guard_context.py": (
        "all reads of the world outside, and the guards that they need"
    ),
    "src/braze/capture/exit/reconstruction.py": "a recipe for each class of values",
    "src/braze/capture/calls/c_functions.py": "calls of C code: what they may be given, and see",
    "tests/unit/runtime/test_guards.py": "a row for each kind of guard",
    "src/braze/lower/lowering.py": "the state of one lowering, and what rules may ask of it",
    "src/braze/pipeline.py": "the compiler on one page",
    "src/braze/tracing/tracer.py": "the dispatch mode: one class",
}


# (file, function) -> why it is one step.
LONG_FUNCTIONS: dict[tuple[str, str], str] = {
    ("src/braze/capture/calls/torch_calls.py", "leaf_call"): "a call into the graph, step by step",
    ("src/braze/capture/interpreter.py", "__init__"): "the tables of a capture",
}


def test_files_are_short() -> None:
    long = [
        f"{f.name}: {f.lines} lines"
        for f in python_files()
        if f.lines > (MOST_FILE_LINES if f.name in LONG_FILES else FILE_LINES)
    ]
    assert not long, f"split by subject, or give the reason in LONG_FILES:{listed(long)}"


def test_functions_are_short() -> None:
    long = [
        f"{file.name}:{function.lineno} {function.name}: {length(function)} lines"
        for file in python_files()
        for function in file.functions()
        if length(function) > FUNCTION_LINES and (file.name, function.name) not in LONG_FUNCTIONS
    ]
    assert not long, listed(long)


def test_most_functions_are_very_short() -> None:
    lengths = [length(function) for file in source_files() for function in file.functions()]
    short = sum(lines < SHORT_FUNCTION_LINES for lines in lengths)
    assert short >= SHORT_SHARE * len(lengths), f"{short} of {len(lengths)}"


def test_the_median_file_is_short() -> None:
    median = statistics.median(file.lines for file in source_files())
    assert median <= MEDIAN_FILE_LINES, median
