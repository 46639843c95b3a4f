"""Notes of passes, kernels and guards that failed, and the texts that a trace keeps of one compile:
programs behind passes, guards, schedules, sources.

Without a trace nothing is printed. The sum of characters is bounded: a text that does not fit is
left out, and what stands for it says how long it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from braze.frozen import frozen

# Log artefacts whose texts are kept as they are logged. None of them prints tensors.
KEPT_ARTEFACTS = frozenset("guards recompiles dynamic schedule output_code".split())

MOST_CHARACTERS = 6_000_000  # of one compile
# Statements or nodes of a program, beyond which it is not printed behind each pass.
MOST_PARTS = 20_000


@final
@frozen
class PassNote:
    """One pass that ran: of which stage, for how many seconds, whether it changed the program."""

    stage: str
    name: str
    seconds: float
    changed: bool

    def __str__(self) -> str:
        text = f"{self.stage}: {self.name} {1e3 * self.seconds:.1f} ms"
        return text if self.changed else f"{text} (unchanged)"


@final
@frozen
class KernelNote:
    """One kernel: its name, the bytes of the buffers that it reads and writes (those of known
    sizes), and the places in the program that it computes.

    graph: the title of its graph. operations: of its product, multiplications and additions; 0
    where it has none, or one of sizes that are not known. is_whole: all sizes are known.
    """

    name: str
    bytes: int
    places: tuple[str, ...]
    graph: str = ""
    operations: int = 0
    is_whole: bool = True


@final
@frozen
class MemoryNote:
    """Bytes that one call of a graph holds at most, without its inputs and constants.

    graph: its title. before: each value in memory of its own until it was last read, as eager has
    it; after: fused and planned. is_whole: all sizes are known; else those that are not count
    nothing.
    """

    graph: str
    before: int
    after: int
    is_whole: bool = True


@final
@frozen
class SizeNote:
    """What became of a size or a number that may change: a symbol, guarded, or specialised.

    text: `s0 = L['x'].size()[0] in [2, inf] (6 now)`. origin: `file:line` of the program that read
    or guarded it, in `function`; source: that line.
    """

    text: str
    origin: str
    function: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.origin} in {self.function}" if self.function else self.origin
        shown = f"\n    {self.source}" if self.source else ""
        return f"{place}: {self.text}{shown}"


@final
@frozen
class FailedGuard:
    """Why an entry did not serve a call.

    reason: which guard failed, and how. place: `file:line` of the program that made it, or "".
    subject: the value that the guard is of, as the program names it. fix: what to do about it.
    """

    reason: str
    place: str = ""
    subject: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.reason}  # {self.place}" if self.place else self.reason


@final
@frozen
class KeptText:
    """One text.

    kind: a log artefact's name, "lines" or "program".
    stage, name: of the pass that gave a program; name "": as it came into the stage.
    changed: whether that pass changed the text, which otherwise is not kept again.
    left_out: characters, or parts, of a text beyond the limit, which is not kept.
    """

    kind: str
    text: str
    stage: str = ""
    name: str = ""
    changed: bool = True
    left_out: int = 0


@final
class KeptTexts:
    """The texts of one compile. print_program: a program's text without tensors' values, or None
    for one that has no text."""

    def __init__(
        self, print_program: Callable[[object], str | None], limit: int = MOST_CHARACTERS
    ) -> None:
        self._print = print_program
        self._left = limit
        self._latest: dict[str, int] = {}  # hashes of programs, by stage
        self.texts: list[KeptText] = []

    def keep(self, kind: str, text: str | Callable[[], str]) -> None:
        """Keep a text. What fails to be printed fails no compile."""
        self._add(kind, text if isinstance(text, str) else _printed(text))

    def keep_program(self, stage: str, name: str, program: object, changed: bool = True) -> None:
        """Keep a program's text behind a pass, if the pass changed it."""
        if not changed:
            self.texts.append(KeptText("program", "", stage, name, changed=False))
            return
        parts = len(program) if isinstance(program, list) else len(getattr(program, "nodes", ()))
        if parts > MOST_PARTS or self._left <= 0:
            self.texts.append(KeptText("program", "", stage, name, left_out=parts))
            return
        text = _printed(lambda: self._print(program) or "")
        if name and self._latest.get(stage) == hash(text):
            self.texts.append(KeptText("program", "", stage, name, changed=False))
            return
        self._latest[stage] = hash(text)
        self._add("program", text, stage, name)

    def _add(self, kind: str, text: str, stage: str = "", name: str = "") -> None:
        fits = len(text) <= self._left
        kept = text if fits else ""
        self._left -= len(kept)
        self.texts.append(
            KeptText(kind, kept, stage, name, left_out=0 if fits else len(text)),
        )


def _printed(make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:  # a printer's fault is seen in the report
        return f"could not be printed: {type(error).__name__}: {error}"
