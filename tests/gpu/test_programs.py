"""Random programs whose tensors are on a device, as compiled and recorded; the long run is
`python -m tests.fuzz --device cuda --mode reduce-overhead`."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import braze
from tests.gpu.checks import MODES, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [[], ["--loops"]])
def test_no_difference(kind: list[str], mode: str | None) -> None:
    """In a process that has used no device: the programs' are forked."""
    command = [sys.executable, "-m", "tests.fuzz", "--device", "cuda", "--programs", "24", *kind]
    command += [] if mode is None else ["--mode", mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_number_of_the_host_is_written_to_a_device() -> None:
    """Spread out on the host, it took its strides along, and nothing could be written there."""

    def function(y: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        y.detach().copy_(number)
        return y[1:].copy_(number * 2) + 1

    number = torch.tensor(2.0)
    right, found = [torch.zeros(5, device="cuda") for _ in range(2)]
    compiled = braze.compile(function, options={"suppress_errors": False})
    torch.testing.assert_close(compiled(found, number), function(right, number))
    torch.testing.assert_close(found, right)
