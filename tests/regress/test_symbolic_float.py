"""Floats that change from call to call. A symbolic size asked for as one raised inside of the
capture, so that the frame ran natively: it is specialised instead. A comparison with a number tied
the program to the float, which compiled again for each value: only the answer is guarded."""

from __future__ import annotations

import math

import pytest
import torch

import braze
from braze.trace import Journal


def test_a_size_as_a_symbolic_float(journal: Journal) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sym_float(x.size(0))

    compiled = braze.compile(scaled, dynamic=True, fullgraph=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x * rows)
    assert not journal.fallbacks()


def test_a_float_that_is_compared() -> None:
    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.p and 0 < self.p <= 0.5:
                return x * self.p
            return x - self.p if self.p > 0.5 else x

    model, x = Noisy(), torch.randn(3, 4)
    # The first compile is for one float; then there is one for each way.
    limit = {"recompile_limit": 4}
    compiled = braze.compile(model, backend="aot_eager", fullgraph=True, options=limit)
    for p in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.05, 0.0, 2.5, 0.25, -1.0, -2.0):
        model.p = p
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)


def test_functions_of_a_float_that_changes(journal: Journal) -> None:
    """Each value compiled anew; of what takes every positive number, the sign alone is guarded."""

    def program(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * math.sqrt(s) + math.log(s) - math.tanh(s)

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    x = torch.ones(3)
    for s in (2.0, 3.0, 4.5, 0.25, 700.0):
        torch.testing.assert_close(compiled(x, s), program(x, s))
    assert len(journal.records()) == 2
    with pytest.raises(ValueError, match=r"math domain error|nonnegative input"):
        compiled(x, -1.0)
    with pytest.raises(ValueError):
        compiled(x, 0.0)
    assert compiled(x, math.inf).isinf().all()
    assert not journal.fallbacks()


def test_a_sine_of_infinity_raises() -> None:
    compiled = braze.compile(lambda x, s: x * math.sin(s), backend="aot_eager")
    for s in (2.0, 3.0):
        compiled(torch.ones(2), s)
    with pytest.raises(ValueError):
        compiled(torch.ones(2), math.inf)


@pytest.mark.parametrize(
    "numbers",
    [
        [(3, 0), (2.0, 2), (5.0, 5), (5.0, 4), (2.5, 2)],
        [(3.0, 1), (4, 4.0), (4, 4.5), (7, 7.0)],
        [(1.5, 1.5), (2.5, 2.5), (2.5, 3.5)],
    ],
)
def test_a_changing_float_is_compared_with_a_changing_integer(
    numbers: list[tuple[float, float]],
) -> None:
    """Equal ones of the two kinds were taken for different: each left the answer to the other."""

    def f(x: torch.Tensor, c: float, n: float) -> tuple[torch.Tensor, list[bool]]:
        asked = [c == n, c != n, c < n, c <= n, c > n, c >= n, n == c, n < c, c in (n,)]
        return x + 1, [bool(answer) for answer in asked]

    compiled = braze.compile(f, backend="aot_eager", options={"suppress_errors": False})
    x = torch.ones(2)
    for c, n in numbers:
        assert compiled(x, c, n)[1] == f(x, c, n)[1]


@pytest.mark.parametrize("numbers", [(2, 3, 4, 5), (2.5, 3.5, 4.0, 4.5)])
def test_a_changing_number_is_compared_with_a_complex_one(numbers: tuple[float, ...]) -> None:
    def f(x: torch.Tensor, n: float) -> tuple[torch.Tensor, list[bool]]:
        other = 4 + 0j
        return x + 1, [n == other, n != other, other == n, n in (other,), other in [n]]

    compiled = braze.compile(f, backend="aot_eager", options={"suppress_errors": False})
    for n in numbers:
        assert compiled(torch.ones(2), n)[1] == f(torch.ones(2), n)[1]
