"""The surface of what belongs to tensors and is none: storages, generators, sizes and dtypes.

python -m tests.surface.objects
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import braze
from braze.options import config
from tests.recorded import recorded
from tests.surface.tensor_questions import LEFT_OUT_OF_OBJECTS, namespace
from tests.surface.tensors import Difference, Tally

Make = Callable[[], Any]


def _storage(numbers: int = 6) -> Any:
    return torch.arange(float(numbers)).untyped_storage()


def _typed() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.arange(6.0).storage()


def _shared() -> Any:
    return torch.arange(6.0).share_memory_().untyped_storage()


def _generator(seed: int = 0, draws: int = 0) -> torch.Generator:
    made = torch.Generator().manual_seed(seed)
    torch.rand(draws, generator=made)
    return made


SUBJECTS: dict[str, dict[str, Make]] = {
    "storage": {
        "plain": _storage,
        "filled otherwise": lambda: _storage().fill_(1),
        "larger": lambda: _storage(7),
        "shared": _shared,
        "of numpy": lambda: torch.from_numpy(torch.arange(6.0).numpy()).untyped_storage(),
    },
    "typed storage": {
        "plain": _typed,
        "double": lambda: torch.arange(6.0, dtype=torch.float64).storage(),
        "filled otherwise": lambda: torch.ones(6).storage(),
    },
    "generator": {
        "plain": _generator,
        "other seed": lambda: _generator(1),
        "advanced": lambda: _generator(draws=5),
    },
    "size": {
        "plain": lambda: torch.Size((2, 3)),
        "larger": lambda: torch.Size((2, 4)),
        "longer": lambda: torch.Size((2, 3, 1)),
    },
    "dtype": {"plain": lambda: torch.float32, "half": lambda: torch.float16},
    "device": {"plain": lambda: torch.device("cpu"), "meta": lambda: torch.device("meta")},
}
_ARGUMENTS = ("", "0", "x", "0, 1", "'plain'")


def questions_of(subject: str) -> Iterator[str]:
    """Expressions of `x`, an object of this kind."""
    make = SUBJECTS[subject]["plain"]
    for name in dir(type(make())):
        if LEFT_OUT_OF_OBJECTS.search(name):
            continue
        if not callable(getattr(make(), name, None)):
            yield f"x.{name}"
            continue
        for arguments in _ARGUMENTS:
            text = f"x.{name}({arguments})"
            if "Error" not in _answer(_function_of(text), make):
                yield text
                break
    yield from ("type(x).__name__", "x == x", "hash(x) == hash(x)", "bool(x)", "repr(x)", "str(x)")


def sweep_objects(subject: str) -> Tally:
    """Put each question to all objects of a kind, one after the other, twice."""
    tally = Tally()
    for text in questions_of(subject):
        function = _function_of(text)
        braze.reset()
        with recorded() as journal, config.patch(recompile_limit=64):
            compiled = braze.compile(function, backend="eager")
            for kind, make in (*SUBJECTS[subject].items(), *SUBJECTS[subject].items()):
                expected, actual = _answer(function, make), _answer(compiled, make)
                tally.asked += 1
                if expected != actual:
                    found = Difference(text, subject, kind, expected, actual)
                    tally.differences.append(found)
            tally.graphs += sum(record.outcome == "graph" for record in journal.records())
    return tally


def _function_of(text: str) -> Callable[[Any, Any], Any]:
    source = f"def ask(x, t):\n    more = t + 1\n    return ({text}), more\n"
    space = namespace()
    exec(compile(source, f"<{text}>", "exec"), space)
    ask: Callable[[Any, Any], Any] = space["ask"]
    return ask


def _answer(function: Callable[[Any, Any], Any], make: Make) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = make()
        try:
            answer = _text(function(x, torch.ones(2))[0], x)
        except Exception as error:
            answer = type(error).__name__
        return f"{answer}; {_state(x)}"


_ADDRESS = re.compile(r"0x[0-9a-f]+|\b\d{10,}\b")


def _text(value: Any, x: Any) -> str:
    if value is x:
        return "x"
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.tolist()}"
    if isinstance(value, torch.Generator):
        return "a generator"
    if type(value) is int and value in _handles(x):
        return _handles(x)[value]
    return _ADDRESS.sub("an address", f"{type(value).__name__} {value}")


def _handles(x: Any) -> dict[int, str]:
    """Numbers that an object has by being where it is."""
    found = {id(x): "id(x)", hash(x): "hash(x)"}
    for name in ("_cdata", "data_ptr"):
        handle = getattr(x, name, None)
        found[handle() if callable(handle) else handle] = name
    return found


def _state(x: Any) -> str:
    """What became of an object."""
    if isinstance(x, torch.Generator):
        return str(x.get_state().sum().item())
    return str(x.tolist() if hasattr(x, "tolist") else x)


def main() -> int:
    """Print the differences."""
    failed = False
    for subject in SUBJECTS:
        tally = sweep_objects(subject)
        for difference in tally.differences:
            print(str(difference)[:500], flush=True)
        print(f"{subject}: {tally.asked} answers, {tally.graphs} graphs", flush=True)
        failed = failed or bool(tally.differences)
    return failed


if __name__ == "__main__":
    sys.exit(main())
