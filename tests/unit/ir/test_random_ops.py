"""Which calls advance a generator, asked of the generator itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from braze import compile, reset
from braze.ir.graphs.random_ops import draws, is_random

_aten = torch.ops.aten
_RANDOM = ("dropout", "attention", "rrelu", "normal", "bernoulli", "multinomial", "rand", "uniform")


class _Asked(TorchDispatchMode):
    """Compares the generator's state before and behind each operator that is said to be random."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calm: set[str] = set()
        self.wrong: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not is_random(func):
            return func(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        moved = not torch.equal(before, torch.get_rng_state())
        if not draws(func, args, kwargs or {}):
            self.calm.add(func._schema.name)
            if moved:
                self.wrong.append(f"{func} {args} {kwargs}")
        return result


def test_no_call_that_is_said_not_to_draw_does() -> None:
    asked = _Asked()
    for op in op_db:
        if not any(part in op.name for part in _RANDOM) or not op.supports_dtype(
            torch.float32, "cpu"
        ):
            continue
        samples = [*op.sample_inputs("cpu", torch.float32, requires_grad=True)]
        for sample in samples[:12]:
            with asked:
                result = op.op(sample.input, *sample.args, **sample.kwargs)
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    result.sum().backward()
    assert asked.wrong == []
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in asked.calm


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "expected"),
    [
        (_aten._scaled_dot_product_flash_attention.default, (0, 0, 0), {}, False),
        (_aten._scaled_dot_product_flash_attention.default, (0, 0, 0, 0.0), {}, False),
        (_aten._scaled_dot_product_flash_attention.default, (0, 0, 0, 0.1), {}, True),
        (_aten._scaled_dot_product_flash_attention.default, (0, 0, 0), {"dropout_p": 0.1}, True),
        (_aten._scaled_dot_product_flash_attention.default, (0, 0, 0, None), {}, True),
        (_aten._scaled_dot_product_efficient_attention_backward.default, (), {}, False),
        (_aten.native_dropout.default, (0, 0.5, False), {}, False),
        (_aten.native_dropout.default, (0, 0.5, None), {}, True),
        (_aten.native_dropout.default, (0, 0.5, True), {}, True),
        (_aten.rand_like.default, (0,), {}, True),
        (_aten.neg.default, (0,), {}, False),
    ],
)
def test_the_arguments_say_whether_a_call_draws(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool
) -> None:
    assert draws(op, args, kwargs) is expected
    assert draws(op, args, tuple(kwargs.items())) is expected


def test_an_entry_with_attention_keeps_no_state_of_generators() -> None:
    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q) + 1

    compiled: Any = compile(attention, fullgraph=True)
    q = torch.randn(1, 2, 8, 16)
    assert torch.allclose(compiled(q), attention(q), atol=1e-6)
    (entry,) = compiled.dispatcher.compiled_entries()
    assert entry.draws_on == () and entry.is_plain
    reset()
