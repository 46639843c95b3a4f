"""What other compilers of Python programs see of a compiled callable: its original.

`torch.compile` and `torch.export` (strict) interpret the frames that they meet, `torch.jit.script`
reads their source. Braze's own frames say nothing to them, and are nothing to be compiled.
"""

from __future__ import annotations

from typing import Any

import torch

# Followed by PyTorch's own compiler from a function to the one that it interprets instead.
_INTERPRETED = "_torchdynamo_inline"
_frames: Any = torch._C._dynamo.eval_frame


def interpreted_as(function: Any, original: Any) -> None:
    """Have PyTorch's compiler interpret `original` where it meets a call of `function`, with the
    same arguments. Where `function` runs, neither its frame nor those below it are compiled."""
    setattr(function, _INTERPRETED, original)
    skip = _frames._FrameAction.SKIP
    _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))
