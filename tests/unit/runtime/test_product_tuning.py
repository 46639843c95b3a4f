"""Whether a product is a kernel of ours: what is asked, and that answers are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from braze.ir.kernel import DeviceFunction, Launch
from braze.ir.loops import BufferView, ExternCall
from braze.options import Options
from braze.runtime.product_tuning import LIBRARY, is_product_quicker
from braze.shapes.expr import Symbol, as_expr
from tests.unit.codegen.programs import buffer

X, W, Y, Z = (buffer(name, (64, 64)) for name in "xwyz")
CALL = ExternCall(
    torch.ops.aten.mm.default,
    tuple([BufferView(b, (64, 64), (64, 1), 0, torch.float32) for b in (X, W)]),
    (),
    (Y,),
)


def _launches(*names: str, size: object = 1) -> tuple[Launch, ...]:
    made = [DeviceFunction(name, "", ("*fp32",) * 3, (), (0, 1, 2), 4) for name in names]
    return tuple([Launch(function, (size, 1, 1), (X, W, Z)) for function in made])  # type: ignore[arg-type]


REST = (Launch(DeviceFunction("rest", "", ("*fp32",) * 2, (), (0, 1), 4), (1, 1, 1), (Y, Z)),)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(mode="max-autotune", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("times", "is_ours"),
    [
        ([10.0, 8.0, 7.0], True),
        ([10.0, 9.9, 9.8], False),
        ([10.0, 12.0, math.inf], False),
        ([math.inf, 12.0, 13.0], True),
    ],
)
def test_the_library_is_left_for_what_is_clearly_quicker(
    times: list[float], is_ours: bool, options: Options
) -> None:
    ways = _launches("a", "b")
    assert is_product_quicker(ways, CALL, REST, options, lambda: times) is is_ours
    (path,) = (options.cache_dir / "tuning").iterdir()
    assert (json.loads(path.read_text())["chosen"] != LIBRARY) is is_ours


def test_an_answer_is_kept(options: Options) -> None:
    asked = []

    def measure() -> Sequence[float]:
        asked.append(1)
        return [10.0, 5.0]

    for _ in range(2):
        assert is_product_quicker(_launches("a"), CALL, REST, options, measure)
    assert len(asked) == 1


def test_other_operands_are_another_question(options: Options) -> None:
    first = CALL.args[0]
    other = ExternCall(CALL.op, (first, BufferView(W, (64, 64), (1, 64), 0, W.dtype)), (), (Y,))
    assert is_product_quicker(_launches("a"), CALL, REST, options, lambda: [10.0, 5.0])
    assert not is_product_quicker(_launches("a"), other, REST, options, lambda: [10.0, 20.0])


def test_symbolic_sizes_are_not_timed(options: Options) -> None:
    ways = _launches("a", size=as_expr(Symbol("s", 0, None)))
    assert not is_product_quicker(ways, CALL, REST, options, lambda: [10.0, 5.0])
    assert not is_product_quicker((), CALL, REST, options, lambda: [10.0])


def test_without_a_device_it_is_the_librarys(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not is_product_quicker(_launches("a"), CALL, REST, options)
    assert not (options.cache_dir / "tuning").exists()
