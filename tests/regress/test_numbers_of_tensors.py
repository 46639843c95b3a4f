"""What Python asks of a float that came out of a tensor, inside of `try`: the answer or the error
is the float's own, never one of what stands for it. Found by a random program (`math.floor`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

QUESTIONS: tuple[Callable[[float], Any], ...] = (
    lambda n: math.floor(n),
    lambda n: math.ceil(n),
    lambda n: math.trunc(n),
    lambda n: round(n),
    lambda n: round(n, 1),
    lambda n: int(n),
    lambda n: n // 2,
    lambda n: n % 2,
    lambda n: 7 // n,
    lambda n: 7 % n,
    lambda n: 7.5 // n,
    lambda n: 7.5 % n,
    lambda n: divmod(n, 2),
    lambda n: divmod(7, n),
    lambda n: 2**n,
    lambda n: n**2,
    lambda n: n.as_integer_ratio(),
    lambda n: n.hex(),
    lambda n: n.is_integer(),
    lambda n: n.conjugate(),
    lambda n: (n.real, n.imag),
    lambda n: n << 1,
    lambda n: 1 << n,
    lambda n: n >> 1,
    lambda n: n & 1,
    lambda n: 1 | n,
    lambda n: ~n,
    lambda n: [1, 2, 3][n],
    lambda n: range(n),
    lambda n: [0] * n,
    lambda n: abs(-n),
    lambda n: complex(n),
    lambda n: math.fmod(n, 2),
    lambda n: math.isnan(n),
    lambda n: math.frexp(n),
    lambda n: math.gcd(n, 2),
    lambda n: math.hypot(n, 4.0),
    lambda n: math.copysign(n, -1.0),
    lambda n: f"{n:.2f}",
    lambda n: str(n),
    lambda n: {n: 1}[3.5],
    lambda n: n in (1.0, 3.5),
    lambda n: n.missing,
    lambda n: n(),
    lambda n: len(n),
    lambda n: n[0],
    lambda n: n @ n,
    lambda n: n + "text",
    lambda n: n < "text",
)


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_answers_and_errors_are_the_float_s(number: int) -> None:
    question = QUESTIONS[number]

    def ask(x: torch.Tensor) -> tuple[str, Any]:
        try:
            return "answer", question(x.sum().item())
        except Exception as error:
            return type(error).__name__, str(error)

    x = torch.tensor([1.0, 2.5], dtype=torch.float64)
    expected, found = ask(x), braze.compile(ask, backend="aot_eager")(x)
    assert found == expected
    assert type(found[1]) is type(expected[1])
