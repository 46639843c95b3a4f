"""What runs a stage's program on inputs and shows its results."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch


def make(shape: Any, stride: Any, dtype: torch.dtype, where: str) -> torch.Tensor:
    """A tensor of random numbers; whole ones are 0 and 1, which index everything."""
    made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    if dtype.is_floating_point or dtype.is_complex:
        kind = torch.complex64 if dtype.is_complex else torch.float32
        return made.copy_(torch.randn(shape, dtype=kind, device="cpu")).to(where)
    return made.copy_(torch.randint(0, 2, shape, device="cpu")).to(where)


def main(program: Callable[[list[Any]], Any], generated: Callable[[], list[object]]) -> None:
    """Run the program on the inputs of `inputs.pt` beside the script, or on generated ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", nargs="?", type=int, default=10, help="calls to time")
    parser.add_argument("--save", help="a file for the results, and the inputs as left behind")
    asked = parser.parse_args()
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inputs.pt")
    saved: Any = torch.load(beside) if os.path.exists(beside) else {}

    def inputs() -> list[object]:
        torch.manual_seed(0)
        if not saved:
            return generated()
        torch.set_rng_state(saved["random"])
        return list(torch.load(beside)["inputs"])

    print("saved inputs" if saved else "generated inputs")
    with torch.no_grad():
        given = inputs()
        results = list(program([*given]))
        for number, result in enumerate(results):
            shown = tuple(result.shape) if isinstance(result, torch.Tensor) else result
            print(f"result {number}: {shown}{difference(result, number, saved)}")
        if asked.save:
            torch.save({"results": results, "inputs": given}, asked.save)
        if asked.calls:
            given = inputs()
            began = time.perf_counter()
            for _ in range(asked.calls):
                program([*given])
            print(f"{1e6 * (time.perf_counter() - began) / asked.calls:.1f} us a call")


def difference(result: object, number: int, saved: Any) -> str:
    """How far a result is from what the compiled graph returned for the saved inputs."""
    if not saved or not isinstance(result, torch.Tensor) or not result.numel():
        return ""
    expected = saved["results"][number]
    if not result.is_floating_point():
        return f", as compiled: {torch.equal(result, expected)}"
    apart = (result.double() - expected.double()).abs().nan_to_num(0.0).max().item()
    return f", largest difference from the compiled graph's {apart:.1e}"
