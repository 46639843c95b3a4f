"""mode="reduce-overhead": who owns what, what moves, what cannot be recorded."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.runtime.cuda_graphs.cuda_graph import NotRecordable, RecordingPool, captured
from braze.trace import Journal
from tests.gpu.checks import NEEDS_DEVICE, RECORDING, fallbacks, no_fallbacks

pytestmark = NEEDS_DEVICE


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64)).cuda()


def _inputs(count: int) -> list[torch.Tensor]:
    return [torch.randn(16, 64, device="cuda") for _ in range(count)]


def test_results_belong_to_the_caller(journal: Journal) -> None:
    """Of kernels and of the library, however many are kept."""

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        product = x @ w
        return product, product.relu() + x, product[2:5]

    w = torch.randn(64, 64, device="cuda")
    compiled = braze.compile(program, mode=RECORDING)
    inputs = _inputs(20)
    with no_fallbacks(journal), torch.no_grad():
        kept = [compiled(x, w) for x in inputs]
        for x, found in zip(inputs, kept):
            torch.testing.assert_close(found, program(x, w))
            found[0].zero_()
            assert found[2].eq(0).all(), "a view of another result"


def test_results_that_are_inputs() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x, x[1:], y * 2, y.t()

    compiled = braze.compile(program, mode=RECORDING)
    with torch.no_grad():
        for x, y in zip(_inputs(6), _inputs(6)):
            found = compiled(x, y)
            assert found[0] is x and found[1].data_ptr() == x[1:].data_ptr()
            assert found[3].data_ptr() == y.data_ptr()
            torch.testing.assert_close(found[2], y * 2)


def test_a_pending_backward_keeps_its_values() -> None:
    model = _model()
    compiled = braze.compile(model, mode=RECORDING)
    inputs = _inputs(10)
    for x in inputs[:4]:
        compiled(x).sum().backward()
    model.zero_grad()
    pending = [compiled(x).square().sum() for x in inputs]
    for loss in reversed(pending):
        loss.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for x in reversed(inputs):
        model(x).square().sum().backward()
    for mine, p in zip(found, model.parameters()):
        torch.testing.assert_close(mine, p.grad, rtol=1e-3, atol=1e-4)


def test_gradients_add_up() -> None:
    model = _model()
    compiled = braze.compile(model, mode=RECORDING)
    inputs = _inputs(9)
    for x in inputs:
        compiled(x).square().mean().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for x in inputs:
        model(x).square().mean().backward()
    for mine, p in zip(found, model.parameters()):
        torch.testing.assert_close(mine, p.grad, rtol=1e-3, atol=1e-5)


def test_parameters_that_move() -> None:
    model = _model()
    compiled = braze.compile(model, mode=RECORDING)
    (x,) = _inputs(1)
    with torch.no_grad():
        for number in range(30):
            if number % 3 == 0:
                for p in model.parameters():
                    p.data = p.data.clone() + 0.01
            torch.testing.assert_close(compiled(x), model(x))


def test_parameters_that_are_written_to(journal: Journal) -> None:
    model = _model()
    compiled = braze.compile(model, mode=RECORDING)
    (x,) = _inputs(1)
    with no_fallbacks(journal), torch.no_grad():
        for _ in range(6):
            for p in model.parameters():
                p.mul_(0.9)
            torch.testing.assert_close(compiled(x), model(x))


def test_inputs_that_are_written_to() -> None:
    def program(state: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state.mul_(0.9).add_(x)
        x.copy_(x @ w)
        return state @ w

    w = torch.randn(64, 64, device="cuda") / 8
    compiled = braze.compile(program, mode=RECORDING)
    with torch.no_grad():
        for state, x in zip(_inputs(8), _inputs(8)):
            mine, theirs = (state.clone(), x.clone()), (state, x)
            version = mine[0]._version
            torch.testing.assert_close(compiled(*mine, w), program(*theirs, w))
            torch.testing.assert_close(mine, theirs)
            assert mine[0]._version > version


def test_no_backward_and_a_new_input_each_time(journal: Journal) -> None:
    """A tutorial's loop: gradients are on and nobody asks for them."""
    model = _model()
    compiled = braze.compile(model, mode=RECORDING)
    allocated = []
    with no_fallbacks(journal):
        for x in _inputs(20):
            out = compiled(x)
            torch.testing.assert_close(out, model(x))
            allocated.append(torch.cuda.memory_allocated())
    assert max(allocated[8:]) <= max(allocated[:8])


def test_what_waits_for_the_device_runs_as_compiled(journal: Journal) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.relu(), (x @ x.t()).sum().cpu()

    compiled = braze.compile(program, mode=RECORDING)
    with torch.no_grad():
        for x in _inputs(5):
            torch.testing.assert_close(compiled(x), program(x))
    assert any("CUDA graph" in reason for reason in fallbacks(journal))


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "parts of calls" in r.getMessage()]


@pytest.mark.parametrize("mode", [None, RECORDING])
def test_parts_around_the_host_are_recorded(
    mode: str | None, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """A value goes to the CPU in the middle, what follows does not wait for it, and comes back."""
    first, second = _layers(12), _layers(12)

    def program(x: torch.Tensor) -> Any:
        middle = first(x)
        mean = middle.mean().cpu() * 2
        return second(middle), mean, middle[1:], second(middle * mean)

    compiled = braze.compile(program, mode=mode)
    kept = []
    with caplog.at_level(logging.INFO, "braze.perf_hints"), no_fallbacks(journal), torch.no_grad():
        for x in _inputs(10):
            kept.append((compiled(x), program(x)))
            if len(kept) % 3 == 0:
                for found in kept[-1]:
                    found[0].zero_()
    assert len(_said(caplog)) == 1 and "runs on the CPU" in _said(caplog)[0]
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted)


def test_parts_of_a_forward_whose_backward_waits(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    model = _layers(8)

    def program(x: torch.Tensor) -> Any:
        middle = model(x)
        return model(middle), middle.detach().mean().cpu()

    compiled = braze.compile(program, mode=RECORDING)
    inputs = _inputs(9)
    with caplog.at_level(logging.INFO, "braze.perf_hints"):
        for start in (0, 3, 6):
            gradients = []
            for run in (compiled, program):
                model.zero_grad()
                pending = [run(x) for x in inputs[start : start + 3]]
                for out, _ in reversed(pending):
                    out.square().mean().backward()
                gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
                gradients[-1] += [mean for _, mean in pending]
            torch.testing.assert_close(*gradients)
    assert len(_said(caplog)) == 1


class _Offloaded(nn.Module):
    """Layers, a scale that lies on the CPU, and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _layers(8), _layers(8)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.first(x).cpu() * self.scale
        return self.second(middle.cuda()) + middle.mean().cuda()


@pytest.mark.parametrize("waiting", [1, 3])
def test_parts_of_a_backward(
    waiting: int, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """The gradient goes to the CPU and back between what is recorded; the layers' gradients are
    held until the next step."""
    model = _Offloaded()
    other = copy.deepcopy(model)
    compiled = braze.compile(model, mode=RECORDING)

    def step(call: Any, of: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        of.zero_grad()
        pending = [call(x) for x in inputs]
        for number, out in enumerate(reversed(pending)):
            if number == 1:
                out.square().mean().backward(retain_graph=True)
            out.square().mean().backward()
        return [*pending, *[p.grad.clone() for p in of.parameters() if p.grad is not None]]

    with caplog.at_level(logging.INFO, "braze.perf_hints"), no_fallbacks(journal):
        for _ in range(8):
            inputs = _inputs(waiting)
            found = step(compiled, model, inputs)
            torch.testing.assert_close(found, step(other, other, inputs), rtol=1e-3, atol=1e-5)
    assert [line.split(":")[1] for line in _said(caplog)] == [" 2)", " 2)"], _said(caplog)


@pytest.mark.parametrize("mode", [None, RECORDING])
def test_a_step_that_counts_on_the_cpu(
    mode: str | None, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """Adam's counters lie on the CPU unless it is told otherwise: programs of their own, and the
    rest is one recording."""
    x, results = torch.randn(32, 64, device="cuda"), []
    with caplog.at_level(logging.INFO, "braze.perf_hints"):
        for compiles in (False, True):
            model = _layers(4)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

            def step(model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            run = braze.compile(step, mode=mode) if compiles else step
            losses = torch.stack([run() for _ in range(10)])
            counts = torch.stack([s["step"] for s in optimizer.state.values()])
            results.append((losses, counts))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-6)
    assert journal.records()[-1].counters["host_scalars"] >= 16 and not _said(caplog)


def test_a_graph_of_the_user_around_it() -> None:
    model = _model()
    compiled = braze.compile(model, mode=RECORDING)
    static, graph = torch.zeros(16, 64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.no_grad():
        for x in _inputs(4):
            compiled(x)
        with torch.cuda.graph(graph):
            out = compiled(static)
        for x in _inputs(3):
            static.copy_(x)
            graph.replay()
            torch.testing.assert_close(out, model(x))


def test_many_sizes() -> None:
    model = _model()
    compiled = braze.compile(model, mode=RECORDING, dynamic=True)
    with torch.no_grad():
        for rows in [*range(2, 24)] * 2 + [5, 5, 5]:
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", ["densenet121", "bert", "t5"])
def test_memory_settles(name: str) -> None:
    from benchmarks.models import MODELS, Size, build

    case = build(MODELS[name], device="cuda", size=Size.TINY)
    args, kwargs = case.arguments(0)
    model = case.model.train()
    compiled = braze.compile(model, mode=RECORDING)
    used = []
    for _ in range(12):
        model.zero_grad()
        case.loss(compiled(*args, **kwargs)).backward()
        used.append(torch.cuda.memory_allocated())
    assert len({*used[6:]}) == 1


def _layers(count: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(count)]
    return nn.Sequential(*layers).cuda()


@pytest.mark.parametrize(("training", "drops"), [(False, 0.0), (True, 0.0), (True, 0.2)])
def test_what_takes_longer_to_start_is_recorded_unasked(
    training: bool, drops: float, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """And draws the random numbers that eager does."""
    model = nn.Sequential(_layers(12), *[nn.Dropout(drops)][: drops > 0])
    compiled = braze.compile(model)
    kept: list[list[torch.Tensor]] = []
    with caplog.at_level(logging.INFO, "braze.perf_hints"), no_fallbacks(journal):
        for x in _inputs(8):
            with torch.set_grad_enabled(training):
                kept.append([])
                for call in (compiled, model):
                    torch.manual_seed(len(kept))
                    kept[-1].append(call(x))
            if training:
                gradients = []
                for out in kept.pop():
                    model.zero_grad()
                    out.square().mean().backward()
                    gradients.append([p.grad.clone() for p in model.parameters()])
                torch.testing.assert_close(*gradients)
    said = [r.getMessage() for r in caplog.records if "calls are recorded" in r.getMessage()]
    assert len(said) == 1 + training
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted)


def test_what_is_small_or_unwanted_stays_as_compiled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "braze.perf_hints"), torch.no_grad():
        for model, mode in ((_layers(1), None), (_layers(12), "default")):
            compiled = braze.compile(model, mode=mode)
            for x in _inputs(6):
                torch.testing.assert_close(compiled(x), model(x))
    assert "calls are recorded" not in caplog.text


def test_results_are_in_memory_once() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    x, w = torch.randn(8192, 64, device="cuda"), torch.randn(64, 8192, device="cuda")
    compiled = braze.compile(program, mode=RECORDING)
    size = 4 * 8192 * 8192
    with torch.no_grad():
        program(x, w)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        for _ in range(6):
            compiled(x, w)
        assert torch.cuda.max_memory_reserved() - before < 2.3 * size


def test_a_capture_that_fails_leaves_nothing_behind() -> None:
    """Neither random numbers nor memory are in it any more."""
    device = torch.device("cuda", torch.cuda.current_device())
    pool = RecordingPool(device)

    def waiting(inputs: list[Any]) -> list[torch.Tensor]:
        torch.cuda.synchronize()
        return inputs

    for _ in range(2):
        with pytest.raises(NotRecordable):
            captured(waiting, [torch.ones(4, device=device)], pool, torch.cuda.graph_pool_handle())
        assert torch.randn(8, device=device).isfinite().all()
    graph, (result,) = captured(
        lambda inputs: [inputs[0] + 1],
        [torch.ones(4, device=device)],
        pool,
        torch.cuda.graph_pool_handle(),
    )
    graph.replay()
    torch.cuda.synchronize()
    assert result.eq(2).all()


def test_recorded_products_take_no_memory_beside_eager_s() -> None:
    """Products work in one piece of the library's, not in one for each stream and thread."""
    w = torch.randn(512, 512, device="cuda", requires_grad=True)
    x = torch.randn(512, 512, device="cuda")

    def program(x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x @ w) @ w).relu()

    def step(call: Any) -> None:
        call(x).sum().backward()
        w.grad = None

    step(program)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    compiled = braze.compile(program, mode=RECORDING)
    for _ in range(6):
        step(compiled)
    torch.cuda.synchronize()
    added = torch.cuda.memory_allocated() - before
    assert added < 16 << 20, f"{added >> 20} MiB stay allocated"
    # Outside of recordings products work, and so do recordings then.
    expected = torch.relu(x.double() @ w.detach().double()) @ w.detach().double()
    for _ in range(2):
        torch.testing.assert_close(program(x).double(), expected.relu(), rtol=1e-2, atol=1e-1)
        torch.testing.assert_close(compiled(x).double(), expected.relu(), rtol=1e-2, atol=1e-1)


def test_recordings_outlive_what_pytorch_drops() -> None:
    """torch.compile has PyTorch drop what products work in before it records."""
    w = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    compiled = braze.compile(lambda x: (x @ w).relu() @ w, mode=RECORDING)
    x = torch.randn(16, 2048, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = (x @ w).relu() @ w
        for _ in range(4):
            compiled(x)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]
        torch.testing.assert_close(compiled(x), expected)
        torch.cuda.synchronize()
    assert all(bool((other == 7).all()) for other in others)


def test_attention_of_the_library_s_cuts_no_recording(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(*[nn.MultiheadAttention(256, 4, batch_first=True) for _ in range(3)])
    model = model.cuda().eval()
    compiled = braze.compile(lambda x: [m(x, x, x, need_weights=False)[0] for m in model])
    x = torch.randn(4, 16, 256, device="cuda")
    with torch.no_grad(), caplog.at_level(logging.INFO, "braze.perf_hints"):
        for _ in range(4):
            found = compiled(x)
        for m, result in zip(model, found):
            torch.testing.assert_close(result, m(x, x, x, need_weights=False)[0])
    assert "parts of calls are recorded" not in caplog.text


@pytest.mark.parametrize("mode", [None, RECORDING])
def test_masks_made_on_the_cpu_are_made_once(mode: str | None, journal: Journal) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.arange(16)
        mask = (place[:, None] >= place).float().to(x.device)
        return (x @ x.T) * mask, mask + 1

    compiled, inputs = braze.compile(program, mode=mode), _inputs(5)
    with no_fallbacks(journal), torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(compiled(x), program(x))
    (record,) = journal.records()
    assert not [op for op in record.extern_ops if "mm" not in op], record.extern_ops
