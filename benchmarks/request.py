"""What the harness asks of one fresh process, and how the process answers.

Both travel as JSON: the request on the worker's standard input, answers as lines on a pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any, final

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
GRAD_MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": contextlib.nullcontext,
}


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What is the same for a whole run. The modes are those of `torch.compile` and Braze.

    work: a name of `benchmarks.work.WORKS`.
    """

    device: str = "cpu"
    grad_mode: str = "no_grad"
    rounds: int = 30
    threads: int | None = None
    torch_mode: str | None = None
    braze_mode: str | None = None
    size: str = "benchmark"
    work: str = "forward"

    def mode_of(self, system: str) -> str | None:
        return {"eager": None, "braze": self.braze_mode}.get(system, self.torch_mode)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One task for one fresh process.

    task: a name of `benchmarks.worker.TASKS`. systems: names of `benchmarks.systems.SYSTEMS`.
    first_compile: compile a trivial function before, so that what a process pays once is apart.
    """

    task: str
    systems: tuple[str, ...]
    settings: Settings
    model: str | None = None
    dtype: str = "float32"
    first_compile: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        fields: dict[str, Any] = json.loads(text)
        fields["settings"] = Settings(**fields["settings"])
        fields["systems"] = tuple(fields["systems"])
        return cls(**fields)
