"""What users see when something goes wrong, each message whole: a title, the explanation, what to
do, the user's line, and how to go on. `messages.txt` is the page of them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import braze
from braze.lower.rules import RULES
from tests.conftest import check_golden

_SOURCE = Path(braze.__file__).parent


def _branch(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) * 2
    if y.sum() > 0:
        y = y + 1
    return y


def _gate(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) + 1


def _named(x: torch.Tensor, name: str) -> torch.Tensor:
    return x * len(name) if name else x


def _call_often(compiled: Callable[..., torch.Tensor]) -> None:
    for count in range(3):
        compiled(torch.ones(3), count * "a")


def _crash(call: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise ZeroDivisionError("planted")


def _compile(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = braze.compile(function, **given)
    return compiled


_LIMIT = {"recompile_limit": 2}
_SEEN: dict[str, Callable[[], object]] = {
    "a graph break under fullgraph=True": lambda: _compile(_branch, fullgraph=True)(torch.ones(3)),
    "a crash of the compiler under fullgraph=True": lambda: _compile(_gate, fullgraph=True)(
        torch.ones(3)
    ),
    "a crash of the compiler": lambda: _compile(_gate)(torch.ones(3)),
    "the recompile limit under fullgraph=True": lambda: _call_often(
        _compile(_named, fullgraph=True, options=_LIMIT)
    ),
    "the recompile limit": lambda: _call_often(_compile(_named, options=_LIMIT)),
    "a wrong option": lambda: _compile(_gate, options={"recompile_limt": 3}),
    "a wrong value of an option": lambda: _compile(_gate, options={"recompile_limit": "many"}),
    "a wrong mode": lambda: _compile(_gate, mode="max-autotun"),
    "something else than a function": lambda: _compile(3),  # type: ignore[arg-type]
    "an option of Inductor that has no counterpart": lambda: _compile(
        _gate, options={"benchmark_fusion": True}
    ),
}


def _seen(show: Callable[[], object]) -> str:
    """What is raised and warned of, with the file that is named."""
    here = str(Path(__file__))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            show()
            raised = ""
        except Exception as error:
            assert isinstance(error, braze.exc.BrazeError)
            raised = f"{type(error).__name__}: {error}"
    own = [each for each in warned if issubclass(each.category, braze.exc.BrazeWarning)]
    assert bool(raised) != bool(own)
    assert all(each.filename == here for each in own), [each.filename for each in own]
    texts = [raised, *(f"{each.category.__name__}: {each.message}" for each in own)]
    shown = "\n".join(filter(None, texts)).replace(here, "program.py")
    return re.sub("Valid: 'activation.*", "Valid: (every option).", shown)


def test_what_users_see(bless: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "aten.sigmoid.default"
    monkeypatch.setitem(RULES, name, replace(RULES[name], rule=_crash))
    page = "\n\n".join(f"=== {title}\n\n{_seen(show)}" for title, show in _SEEN.items())
    assert str(_SOURCE) not in page
    check_golden(Path(__file__).with_name("messages.txt"), page + "\n", bless)


def test_warnings_name_the_program_s_line() -> None:
    """Braze's own come from one function, which looks for the innermost line of the program."""
    found = [
        f"{path.relative_to(_SOURCE)}:{node.lineno}"
        for path in _SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]
    assert [place.split(":")[0] for place in found] == ["errors.py"], found
