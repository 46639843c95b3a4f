"""Torch modes that a program enters: one in which tensors index tensors; others break the graph.

`flex_attention` and `create_block_mask` call the program's functions of scores with indices that
are tensors without dimensions, in a mode in which `tensor[i]` of such is a lookup. Nothing enters
that mode for real: `tensor_item` asks how many are under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.compat.torch.ambient_state import MODE_ENTRIES, MODE_EXIT
from braze.compat.torch.higher_order.flex_attention import IndexingByTensors, is_index_mode

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class IndexMode:
    """A mode that the frame entered, which it must leave; `entered_at`: the outermost step."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter, self.entered_at = interpreter, interpreter.outer_step
        interpreter.index_modes += 1

    def __exit__(self, *exception: object) -> None:
        self.interpreter.index_modes -= 1


@answers(*MODE_ENTRIES)
def enter_mode(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A mode sees all that follows: only one is known whose effect capture has by itself."""
    if not args or not is_index_mode(args[0]):
        raise BreakRequested("global-state", "a torch mode that the program enters")
    interpreter.entered.append(IndexMode(interpreter))
    return args[0]


@answers(MODE_EXIT)
def leave_mode(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """A mode that began outside is not the frame's to leave."""
    modes = [entered for entered in interpreter.entered if type(entered) is IndexMode]
    if not args or not is_index_mode(args[0]) or not modes:
        raise BreakRequested("global-state", "the end of a torch mode")
    interpreter.entered.remove(modes[-1])
    modes[-1].__exit__()


@answers(IndexingByTensors.__enter__)
def enter_region(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    interpreter.entered.append(IndexMode(interpreter))


@answers(IndexingByTensors.__exit__)
def leave_region(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    (*_, mode) = (entered for entered in interpreter.entered if type(entered) is IndexMode)
    interpreter.entered.remove(mode)
    mode.__exit__()
