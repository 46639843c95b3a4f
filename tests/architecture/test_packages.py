"""How the source is divided: packages by concept, in an order that imports follow; names once."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.architecture.tree import SourceFile, listed, source_files

MOST_FILES = 25

# package -> its parts, bottom first: each imports what is before it. "" is the package's own files
# that have no place of their own in the list.
ORDER: dict[str, list[str]] = {
    "compat": ["private_names", "numpy", "python", "torch", "triton", ""],
    "ir": ["", "graphs", "captured", "kernels"],
    "lower": ["", "operators"],
    "schedule": [*"target analysis padding simplify memory matmul fusion reductions".split(), ""],
    "runtime": [*"launch cuda guards cuda_graphs autograd dispatch link resume native".split(), ""],
    "capture": [
        *"frames state calls training arrays tensors objects opcodes handlers exit".split(),
        "",
    ],
}

# (file, part that it imports) -> why. May only shrink.
_CALLS = "src/braze/capture/calls"
UPWARDS: dict[tuple[str, str], str] = {
    (f"{_CALLS}/c_functions.py", "arrays"): "NumPy's functions are C functions",
    (f"{_CALLS}/c_functions.py", "objects"): "C code iterates over objects of the program",
    (f"{_CALLS}/torch_calls.py", "arrays"): "operands that are arrays of NumPy's",
    (f"{_CALLS}/torch_calls.py", "tensors"): "operands that are of a subclass",
    (f"{_CALLS}/user_annotations.py", "objects"): "an annotation is an attribute of a function",
    ("src/braze/capture/frames/generators.py", "state"): "a generator's text may leave the frame",
    ("src/braze/capture/objects/runtime_asserts.py", "exit"): "a failed assertion's message",
    ("src/braze/capture/state/guard_context.py", "arrays"): "arrays from outside",
    ("src/braze/capture/state/guard_context.py", "tensors"): "sizes of tensors from outside",
    ("src/braze/capture/training/module_conversion.py", "objects"): "attributes of modules",
    ("src/braze/ir/graphs/run_graph.py", "captured"): "how writes are made behind a graph",
    ("src/braze/ir/graphs/version_counters.py", "captured"): "the same",
    ("src/braze/runtime/cuda_graphs/verify_replay.py", "link"): "what a replay is compared with",
    ("src/braze/runtime/dispatch/cache_entries.py", "resume"): "a call goes on behind a break",
    ("src/braze/runtime/dispatch/compiled_function.py", "resume"): "the same",
}


def test_no_folder_is_full() -> None:
    counts = Counter(str(file.path.parent) for file in source_files())
    full = [f"{folder}: {count} files" for folder, count in counts.items() if count > MOST_FILES]
    assert not full, f"divide it by concept:{listed(full)}"


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in source_files():
        for node in file.nodes():
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.name}:{node.lineno}")
    twice = [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]
    assert not twice, f"one name, one class:{listed(twice)}"


def test_parts_of_packages_import_downwards() -> None:
    found = {(file.name, part): line for file, part, line in _upward_imports()}
    wrong = [f"{file}:{line} imports {part}" for (file, part), line in found.items()
             if (file, part) not in UPWARDS]  # fmt: skip
    assert not wrong, f"a part imports only those before it in ORDER:{listed(wrong)}"
    gone = [f"{file}: {part}" for file, part in UPWARDS if (file, part) not in found]
    assert not gone, f"no longer there, so take it out of UPWARDS:{listed(gone)}"


def test_every_part_is_in_the_order() -> None:
    missing = sorted(
        {
            f"{package}/{part}"
            for file in source_files()
            for package, part in [_part_of(_relative(file))]
            if package in ORDER and part not in ORDER[package]
        }
    )
    assert not missing, f"say in ORDER where these belong:{listed(missing)}"


# --- private ---------------------------------------------------------------------------------


def _relative(file: SourceFile) -> PurePosixPath:
    return PurePosixPath(file.name).relative_to("src/braze")


def _part_of(path: PurePosixPath) -> tuple[str, str]:
    """(package, part) of a file below src/braze."""
    package, *rest = path.parts
    if len(rest) > 1:
        return package, rest[0]
    stem = path.stem
    return package, stem if stem in ORDER.get(package, ()) else ""


def _upward_imports() -> Iterator[tuple[SourceFile, str, int]]:
    """(file, part, line): imports of a part that is behind the file's own in its package."""
    parts = {file.module: _part_of(_relative(file)) for file in source_files()}
    for file in source_files():
        package, part = parts[file.module]
        if package not in ORDER or file.path.name == "__init__.py":
            continue
        order = ORDER[package]
        for imported, line in file.imports(for_types=False):  # annotations order nothing
            module = imported if imported in parts else imported.rpartition(".")[0]
            other, theirs = parts.get(module, ("", ""))
            if other == package and order.index(theirs) > order.index(part):
                yield file, theirs, line
