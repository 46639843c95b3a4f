"""How much of the source leaves its types open. `Any` is for the program's own values where they
are looked into; what is only handed on is an `object`."""

from __future__ import annotations

import ast
from collections import Counter

from tests.architecture.tree import SOURCE, Function, SourceFile, listed, source_files

# part of the source -> of a hundred of its signatures, how many may name `Any`. These only fall.
MOST_LOOSE: dict[str, int] = {
    "packaging": 25,
    "packages": 29,
    "capture": 33,
    "compat": 23,
    "tracing": 29,
    "interop": 20,
    "beside the packages": 22,
    "diagnose": 18,
    "runtime": 15,
    "shapes": 12,
    "lower": 12,
    "autograd": 9,
    "ir": 9,
    "rewrite": 7,
    "report": 9,
}
OTHERS = 5
# A bound that is further above its part's share is lowered.
SLACK = 5


def _is_loose(function: Function) -> bool:
    """Whether an annotation of the signature is `Any`, or holds it."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    every += tuple(filter(None, (arguments.vararg, arguments.kwarg)))
    notes = [argument.annotation for argument in every] + [function.returns]
    return any(
        isinstance(node, ast.Name) and node.id == "Any"
        for note in notes
        if note is not None
        for node in ast.walk(note)
    )


def _part(file: SourceFile) -> str:
    """The package that a file is in; small files beside the packages count together."""
    return "beside the packages" if file.path.parent == SOURCE else file.layer


def _shares() -> dict[str, float]:
    """Of a hundred signatures, how many are loose; of each part of the source."""
    loose, every = Counter[str](), Counter[str]()
    for file in source_files():
        for function in file.functions():
            every[_part(file)] += 1
            loose[_part(file)] += _is_loose(function)
    return {part: 100 * loose[part] / count for part, count in every.items()}


def test_few_signatures_are_loose() -> None:
    wrong = [
        f"{part}: {share:.1f} % of the signatures name Any, at most {MOST_LOOSE.get(part, OTHERS)}"
        for part, share in _shares().items()
        if share > MOST_LOOSE.get(part, OTHERS)
    ]
    assert not wrong, f"give values their types, or `object`:{listed(wrong)}"


def test_bounds_of_loose_signatures_fall() -> None:
    shares = _shares()
    high = [
        f"{part}: {bound} allowed, {shares.get(part, 0):.1f} are"
        for part, bound in MOST_LOOSE.items()
        if bound - shares.get(part, 0) > SLACK or bound <= OTHERS
    ]
    assert not high, f"lower these in MOST_LOOSE, or leave them out:{listed(high)}"


def test_loose_signatures_are_seen() -> None:
    text = "def f(a: list[Any]): ...\ndef g(*, b: int) -> Any: ...\ndef h(c: object) -> int: ..."
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert [_is_loose(function) for function in functions] == [True, True, False]
