"""Where a piece of the program came from. Carried unchanged from capture to kernel."""

from __future__ import annotations

from typing import final

from braze.frozen import frozen


@final
@frozen
class Origin:
    """A place in the user's program.

    file: path of the user's source file, as in the code object.
    line: 1-based line number.
    function: name of the function that holds the line.
    call: the torch-level call made there ("torch.nn.functional.linear"), or "".
    """

    file: str
    line: int
    function: str = ""
    call: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place} {self.call}" if self.call else place


UNKNOWN = Origin("<unknown>", 0)
