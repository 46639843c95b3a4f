"""The sweep: each question is put to tensors of all kinds, compiled and eagerly.

One compiled function is asked about all kinds one after the other, and then again from the first:
what an entry for one tensor says of the next one is compared as well.

    python -m tests.surface.tensors                     all of it, five minutes on a core
    python -m tests.surface.tensors --part 0/8 --only is_
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch

import braze
from braze.options import config
from tests.recorded import recorded
from tests.surface.tensor_kinds import EVERY, FEW
from tests.surface.tensor_questions import Question, namespace, questions

Asked = TypeVar("Asked")

# What the question is put to.
WAYS = {
    "the input": "x",
    "made of it": "x * 2",
    "a view of it": "x.unsqueeze(0)",
    "detached": "x.detach()",
    "found outside": "HELD[0]",
}
HELD: list[Any] = []


class Difference(NamedTuple):
    """What eager and Braze answered."""

    question: str
    way: str
    kind: str
    eager: str
    compiled: str

    def __str__(self) -> str:
        where = f"{self.question} of {self.way}, {self.kind}"
        return f"{where}:\n    eager {self.eager}\n    braze {self.compiled}"


class Tally:
    """asked: answers that were compared. graphs: that were captured."""

    def __init__(self) -> None:
        self.asked = 0
        self.graphs = 0
        self.differences: list[Difference] = []


def sweep(
    asked: Iterable[Question], ways: Iterable[str] = WAYS, tally: Tally | None = None
) -> Tally:
    """Put questions to tensors of all kinds."""
    tally = tally or Tally()
    for question in asked:
        for way in ways:
            _ask_all(question, way, tally)
    return tally


def _ask_all(question: Question, way: str, tally: Tally) -> None:
    function = function_of(question, WAYS[way])
    kinds = list(EVERY) if way == "the input" and not question.is_operator else list(FEW)
    if "storage()." in question.text:
        kinds = [kind for kind in kinds if kind not in _WITHOUT_MEMORY]
    found: dict[str, Difference] = {}
    braze.reset()
    with recorded() as journal, config.patch(recompile_limit=256, dynamic=False):
        compiled = braze.compile(function, backend="eager")
        for kind in (*kinds, *kinds):
            with deadline(SECONDS):
                expected = _answer(function, kind)
            if expected == ENDLESS:
                continue
            actual = _answer(compiled, kind)
            tally.asked += 1
            if expected != actual:
                found.setdefault(way, Difference(question.text, way, kind, expected, actual))
        tally.graphs += sum(record.outcome == "graph" for record in journal.records())
    tally.differences += found.values()


# Their storages end the process where they are converted.
_WITHOUT_MEMORY = ("zeros without memory", "meta")
# Eager answers each question in milliseconds, or never: `index` of `functorch.dim` loops forever
# where a tensor has no dimensions.
SECONDS = 3  # of the process's own
ENDLESS = "TimeoutError"


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what runs for longer, where it is Python code of the main thread."""

    def expired(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def function_of(question: Question, place: str) -> Callable[[Any], Any]:
    """The question as a function whose graph has an operator, whatever the answer."""
    text = f"def ask(x):\n    more = x + 1\n    x = {place}\n    return ({question.text}), more\n"
    space = {**namespace(), "HELD": HELD}
    exec(compile(text, f"<{question.text}>", "exec"), space)
    ask: Callable[[Any], Any] = space["ask"]
    return ask


def _answer(function: Callable[[Any], Any], kind: str) -> str:
    """The answer for a tensor of its own."""
    x = EVERY[kind]()
    HELD[:] = [x]
    return shown_answer(function, x)


def shown_answer(function: Callable[[Any], Any], x: Any) -> str:
    """The answer as text; what became of that tensor."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handles = _handles(x)
        try:
            answer = _text(function(x)[0], x, handles)
        except Exception as error:
            answer = type(error).__name__
        if answer == ENDLESS:
            return ENDLESS
        return f"{answer}; {_text(x, None, handles)}, version {_version(x)}"


def _version(x: Any) -> int:
    return 0 if x.is_inference() else int(x._version)


def _handles(x: Any) -> dict[Any, str]:
    """Numbers that a tensor has by being where it is, by name."""
    found = {id(x): "id(x)", x._cdata: "x._cdata"}
    try:
        found[x.data_ptr() or -1] = "x.data_ptr()"
        found[x.untyped_storage().data_ptr() or -1] = "storage data_ptr()"
        found[x.untyped_storage()._cdata] = "storage _cdata"
    except RuntimeError:  # of a layout without a storage
        pass
    return found


_ADDRESS = 1 << 32
_ADDRESSES = re.compile("0x[0-9a-f]+")


def _text(value: Any, x: Any, handles: dict[Any, str]) -> str:
    """A value in words that two processes would share."""
    if x is not None and value is x:
        return "x"
    if isinstance(value, torch.Tensor):
        return _text_of_tensor(value)
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join([_text(v, x, handles) for v in value])})"
    if isinstance(value, dict):
        keys = [key for key in value if type(key) is not int]  # hooks are numbered as they come
        return f"{type(value).__name__}({len(value)}: {', '.join(map(str, keys))})"
    if type(value) is int and value in handles:
        return handles[value]
    if type(value) is int and value > _ADDRESS:
        return "an address"
    if type(value) is str:
        return f"str {_ADDRESSES.sub('an address', value)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, *_CONSTANTS)):
        return f"{type(value).__name__} {value}"
    return f"a {type(value).__name__}"


_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.Size, torch.memory_format, type)


def _text_of_tensor(value: torch.Tensor) -> str:
    facts = f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        return facts
    numbers = "zeros" if value._is_zerotensor() else _numbers(value)
    return f"{facts} {value.stride()} {value.is_inference()} {numbers}"


def _numbers(value: torch.Tensor) -> Any:
    if value.numel() and not value.untyped_storage().nbytes():
        return "no memory"
    with torch.inference_mode():
        return value.detach().resolve_conj().resolve_neg().tolist()


def part_of(asked: Iterable[Asked], part: str) -> list[Asked]:
    """Every n-th question: "2/8" is the third of eight parts."""
    number, count = map(int, part.split("/"))
    return list(asked)[number::count]


def run_sweep(
    description: str | None,
    ways: Iterable[str],
    asked: Iterable[Asked],
    sweep: Callable[[list[Asked], list[str], Tally], object],
    shown: Callable[[Difference], str],
) -> int:
    """Put a part of the questions from the command line, and print the differences as they are
    found; 1 where there are any."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--part", default="0/1", help="which of how many parts: 0/8")
    parser.add_argument("--only", default="", help="a piece of the questions' text")
    parser.add_argument("--ways", nargs="*", default=list(ways))
    options = parser.parse_args()
    tally = Tally()
    for question in part_of(asked, options.part):
        if options.only not in str(getattr(question, "text", question)):
            continue
        before = len(tally.differences)
        sweep([question], options.ways, tally)
        for difference in tally.differences[before:]:
            print(shown(difference), flush=True)
    print(f"{tally.asked} answers, {tally.graphs} graphs, {len(tally.differences)} differences")
    return int(bool(tally.differences))


def main() -> int:
    """Put the questions to tensors."""
    return run_sweep(__doc__, WAYS, questions(), sweep, lambda found: str(found)[:800])


if __name__ == "__main__":
    sys.exit(main())
