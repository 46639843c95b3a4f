"""Results of a graph that are looked at before anything is done with the others: whether the
program raises (`capture/objects/runtime_asserts.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from braze.ir.captured.compile_request import GraphCallable
from braze.ir.captured.frame import RuntimeCheck
from braze.ir.origin import Origin


@final
class CheckFailed(Exception):
    """The program raises here: the frame is to run eagerly, which is no fault."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(f"{origin}: the program raises here")


def with_checks(run: GraphCallable, checks: Sequence[RuntimeCheck]) -> GraphCallable:
    """The graph; CheckFailed where a result is not as it has to be."""
    if not checks:
        return run

    def run_and_check(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = run(inputs)
        for check in checks:
            if bool(results[check.result]) is not check.holds:
                raise CheckFailed(check.origin)
        return results

    return run_and_check
