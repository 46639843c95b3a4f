"""What compiling itself changes, as PyTorch's late imports do: the program is captured again."""

from __future__ import annotations

import torch

import braze

KINDS: dict[str, int] = {}


@torch.library.custom_op("braze_regress_late::double", mutates_args=())
def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


@double.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    KINDS["late"] = 1
    return torch.empty_like(value)


def test_registry_that_grows_while_it_is_captured() -> None:
    KINDS.clear()
    compiled = braze.compile(
        lambda x: (len(KINDS), double(x) + 1), backend="aot_eager", fullgraph=True
    )
    assert compiled(torch.ones(2))[0] == 1
    assert compiled(torch.ones(2))[1].tolist() == [3, 3]


def test_generator_says_whether_it_ended() -> None:
    def numbers(count: int) -> object:
        yield from range(count)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        made = numbers(2)
        total = sum(made)  # type: ignore[call-overload]
        return x + total, made.gi_frame is None  # type: ignore[attr-defined]

    compiled = braze.compile(step, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] is step(torch.ones(2))[1] is True
