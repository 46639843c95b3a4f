"""Which of the ways to compute a product is taken: what is timed, and that answers are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.cache import cache_of
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import BufferView, ExternCall
from braze.options import Options
from braze.runtime.cuda.autotune_matmul import LIBRARY, Steps, library_start, quickest_way, runs_of
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


MAKER, REST = (
    (Launch(DeviceFunction(name, "", ("*fp32",) * 2, (), (0, 1), 4), (1, 1, 1), buffers),)
    for name, buffers in (("maker", (Z, X)), ("rest", (Y, Z)))
)


def _ways(*names: str, size: object = 1) -> list[Steps]:
    """The library's, and a kernel of all."""
    return [(MAKER, CALL, REST), (_launches(*names, size=size),)]


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
    assert quickest_way(_ways("a", "b"), options, lambda: times) == int(is_ours)
    (path,) = (options.cache_dir / "tuning").iterdir()
    kept = cache_of(options).read("tuning", path.stem)
    assert kept and (json.loads(kept)["chosen"] != LIBRARY) is is_ours


def test_a_library_call_writes_where_the_rest_reads_if_it_can() -> None:
    """A convolution's own result is another tensor in a program, too: no copy is timed with it."""
    image = buffer("image", (2, 16, 5, 4))
    weight, made = buffer("weight", (8, 16, 1, 1)), buffer("made", (2, 8, 5, 4))
    views = [BufferView(b, b.shape, b.stride, 0, b.dtype) for b in (image, weight)]
    numbers = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    call = ExternCall(torch.ops.aten.convolution.default, (*views, *numbers), (), (made,))
    memory = {b: torch.ones(4096) for b in (image, weight, made, X, W, Y)}
    for written, start in ((made, library_start(call, memory)), (Y, library_start(CALL, memory))):
        before = memory[written].clone()
        calls: list[str] = []
        with _Seen(calls):
            assert start() == 0
        assert torch.equal(memory[written], before) is (written is made)
        assert calls == (["aten.convolution.default"] if written is made else ["aten.mm.out"])


def test_a_library_call_is_timed_without_autocast() -> None:
    """As a graph runs it: it has the casts that autocast made."""
    seen: list[bool] = []
    key = torch._C.DispatchKey.AutocastCPU

    def called(*_: Any) -> None:
        seen.append(torch._C._dispatch_tls_is_dispatch_key_excluded(key))

    called.overloadpacket = SimpleNamespace(  # type: ignore[attr-defined]
        out=SimpleNamespace(tags=[torch.Tag.generated])
    )
    start = library_start(replace(CALL, op=called), {b: torch.ones(4096) for b in (X, W, Y)})
    with torch.autocast("cpu", torch.bfloat16):
        assert start() == 0
    assert seen == [True]


class _Seen(TorchDispatchMode):
    """What is called; a convolution is not made of others here."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_is_timed_is_each_way_with_each_launch() -> None:
    ways = [*_ways("a", "b"), (MAKER, _launches("c", "d")), (MAKER, ())]
    found = [(run.way, run.name, len(run.parts)) for run in runs_of(ways)]
    assert found == [
        (0, LIBRARY, 3),
        (1, "a", 1),
        (1, "b", 1),
        (2, "maker+c", 2),
        (2, "maker+d", 2),
    ]


@pytest.mark.parametrize("quickest", range(5))
def test_the_way_of_the_quickest_is_taken(quickest: int, options: Options) -> None:
    ways = [*_ways("a", "b"), (MAKER, _launches("c", "d"))]
    times = [5.0 if n == quickest else 10.0 for n in range(5)]
    assert quickest_way(ways, options, lambda: times) == (0, 1, 1, 2, 2)[quickest]
    assert (
        quickest_way(ways, options, lambda: pytest.fail("asked again"))
        == ((0, 1, 1, 2, 2)[quickest])
    )


def test_an_answer_is_kept(options: Options) -> None:
    asked = []

    def measure() -> Sequence[float]:
        asked.append(1)
        return [10.0, 5.0]

    for _ in range(2):
        assert quickest_way(_ways("a"), options, measure) == 1
    assert len(asked) == 1


def test_other_operands_are_another_question(options: Options) -> None:
    first = CALL.args[0]
    other = ExternCall(CALL.op, (first, BufferView(W, (64, 64), (1, 64), 0, W.dtype)), (), (Y,))
    assert quickest_way(_ways("a"), options, lambda: [10.0, 5.0]) == 1
    ways = [(MAKER, other, REST), (_launches("a"),)]
    assert quickest_way(ways, options, lambda: [10.0, 20.0]) == 0


def test_symbolic_sizes_are_not_timed(options: Options) -> None:
    ways = _ways("a", size=as_expr(Symbol("s", 0, None)))
    assert quickest_way(ways, options, lambda: [10.0, 5.0]) == 0
    assert quickest_way(_ways(), options, lambda: [10.0]) == 0


def test_without_a_device_it_is_the_librarys(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert quickest_way(_ways("a"), options) == 0
    assert not (options.cache_dir / "tuning").exists()
