"""`", ".join([f"{n}"])` was served to other values of n: `str.join` reads the characters of a text
that shows a size without calling one of its methods, so that nothing was asked of n."""

from __future__ import annotations

import torch

import braze

KEPT: list[str] = []


def test_joined_texts_of_a_changing_integer() -> None:
    def program(x: torch.Tensor, n: int) -> None:
        KEPT[:] = ["-".join([f"{n}"])]

    compiled = braze.compile(program, backend="aot_eager")
    for n in (2, 3, 2, 5):
        compiled(torch.ones(2), n)
        assert repr(KEPT) == f"['{n}']"
