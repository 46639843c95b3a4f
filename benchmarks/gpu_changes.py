"""What each change for GPUs brings, with it and without, in one call of a few minutes.

    python -m benchmarks.gpu_changes [--seconds 440] [--only products,models] [--cases gpt2]

    products      products with rows that begin anywhere, as they are, padded, and with strides that
                  align their rows: the rates in rewrite/align_products.py
    convolutions  layers row-major and channels-last: the prices in rewrite/prefer_channels_last.py
    kernels       single kernels by two schedules, as shares of a copy's bandwidth
    models        whole models with a graph pass and without it; peaks of memory of recordings
    gradients     a deep network's in float32, each graph pass left out, the worst parameter named

Parts are run in this order until the time is up; each prints its rows as it has them. Products and
convolutions are compared with eager's; models with their own float64 copy, where an error more
than twice eager's is marked WRONG. (Two computations of ResNet-50's gradients in TF32 that differ
by a rounding of the input are 0.4 apart: that says nothing. So the last part forbids TF32.) Ends
with one table.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import importlib
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional

import braze
from benchmarks.kernels_gpu_cases import cases
from benchmarks.models import tensors_in
from benchmarks.models_gpu_cases import CASES, GpuCase
from braze.options import GRAPH_PASSES
from braze.schedule import CUDA

Tensor = torch.Tensor
_HALF = torch.bfloat16


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. time_ms: of a call; figure: what it says, in words; error: relative to
    the reference, None where nothing is compared; most: what is right."""

    part: str
    case: str
    variant: str
    time_ms: float
    figure: str = ""
    error: float | None = None
    most: float = 0.0

    def __str__(self) -> str:
        wrong = self.error is not None and not self.error <= self.most
        error = "" if self.error is None else f"{self.error:.1e}" + (" WRONG" if wrong else "")
        cells = (self.part, self.case, self.variant, f"{self.time_ms:.3f}", self.figure, error)
        return f"| {' | '.join(cells)} |"


# --- time ----------------------------------------------------------------------------------------


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(calls: Mapping[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """Milliseconds a call of each, the median of interleaved rounds. All have been called."""
    synchronize(device)
    began = time.perf_counter()
    for call in calls.values():
        call()
    synchronize(device)
    each = (time.perf_counter() - began) / len(calls)
    count = max(1, min(200, round(0.02 / max(each, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            synchronize(device)
            began = time.perf_counter()
            for _ in range(count):
                call()
            synchronize(device)
            times[name].append((time.perf_counter() - began) / count * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The relative error of results as a whole: some gradients are zero but for rounding."""
    pairs = list(zip(found, wanted, strict=True))
    gap = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for _, b in pairs)
    return (gap / max(size, 1e-30)) ** 0.5


# --- products ------------------------------------------------------------------------------------

# Name -> (m, k, n), and whether each operand lies transposed in memory.
PRODUCTS: Mapping[str, tuple[tuple[int, int, int], bool, bool]] = {
    "gpt2 head": ((4096, 768, 50257), False, True),
    "gpt2 head, dx": ((4096, 50257, 768), False, False),
    "gpt2 head, dw": ((50257, 4096, 768), True, False),
    "bert head": ((8192, 768, 30522), False, True),
    "aligned": ((4096, 768, 50304), False, True),
}


def _matrix(rows: int, columns: int, transposed: bool, device: str) -> Tensor:
    shape = (columns, rows) if transposed else (rows, columns)
    made = torch.randn(shape, device=device, dtype=_HALF) / 8
    return made.t() if transposed else made


def _padded(x: Tensor, transposed: bool) -> Tensor:
    rows, columns = (-n % 8 for n in x.shape)
    if transposed:
        return functional.pad(x.t(), (0, rows, 0, columns)).t()
    return functional.pad(x, (0, columns, 0, rows))


def _with_aligned_rows(x: Tensor) -> Tensor:
    """A copy whose rows (columns, where those are contiguous) begin at multiples of 8 elements."""
    if x.stride(0) == 1 and x.stride(1) != 1:
        return _with_aligned_rows(x.t()).t()
    wide = x.new_empty(x.shape[0], -(-x.shape[1] // 8) * 8)[:, : x.shape[1]]
    return wide.copy_(x)


def product_calls(
    sizes: tuple[int, int, int], first: bool, second: bool, device: str
) -> dict[str, Callable[[], Tensor]]:
    """The ways to multiply; each gives the same (m, n)."""
    m, k, n = sizes
    a, b = _matrix(m, k, first, device), _matrix(k, n, second, device)
    wide_a, wide_b = _padded(a, first), _padded(b, second)
    rows_a, rows_b = _with_aligned_rows(a), _with_aligned_rows(b)
    out = _with_aligned_rows(a.new_empty(m, n))
    return {
        "as it is": lambda: a @ b,
        "padded": lambda: (wide_a @ wide_b)[:m, :n],
        "padded, with copies": lambda: (_padded(a, first) @ _padded(b, second))[
            :m, :n
        ].contiguous(),
        "aligned rows only": lambda: torch.mm(rows_a, rows_b, out=out),
    }


def run_products(device: str, scale: int = 1) -> Iterator[Row]:
    """Times and rates of the ways. scale: sizes are divided by it."""
    for name, (sizes, first, second) in PRODUCTS.items():
        m, k, n = (max(9, size // scale) for size in sizes)
        calls = product_calls((m, k, n), first, second, device)
        wanted = calls["as it is"]().clone()
        errors = {label: distance([call()], [wanted]) for label, call in calls.items()}
        for label, ms in timed(calls, device, 5).items():
            rate = f"{2 * m * k * n / ms / 1e9:.0f} TFLOP/s"
            yield Row("products", name, label, ms, rate, errors[label], 1e-2)


# --- convolutions --------------------------------------------------------------------------------

# Name -> (batch, channels, side), (channels out, kernel, stride, groups).
CONVOLUTIONS: Mapping[str, tuple[tuple[int, int, int], tuple[int, int, int, int]]] = {
    "stem": ((32, 3, 224), (64, 7, 2, 1)),
    "1x1 of 256": ((32, 256, 56), (64, 1, 1, 1)),
    "3x3 of 64": ((32, 64, 56), (64, 3, 1, 1)),
    "3x3 of 512": ((32, 512, 7), (512, 3, 1, 1)),
    "3x3 each channel": ((32, 192, 28), (192, 3, 1, 192)),
    "3x3 of 32 groups": ((32, 256, 28), (256, 3, 1, 32)),
}


def run_convolutions(device: str, scale: int = 1) -> Iterator[Row]:
    """Each layer in both layouts, in float32 (TF32 where PyTorch allows it) and bfloat16."""
    last = torch.channels_last
    for name, ((batch, channels, side), (out, kernel, stride, groups)) in CONVOLUTIONS.items():
        for dtype in (torch.float32, _HALF):
            shape = (max(1, batch // scale), channels, max(7, side // scale), max(7, side // scale))
            x = torch.randn(shape, device=device, dtype=dtype)
            w = torch.randn(out, channels // groups, kernel, kernel, device=device, dtype=dtype)
            lx, lw = x.to(memory_format=last), w.to(memory_format=last)

            def conv(
                x: Tensor, w: Tensor, s: int = stride, k: int = kernel, g: int = groups
            ) -> Any:
                return functional.conv2d(x, w, stride=s, padding=k // 2, groups=g)

            calls: dict[str, Callable[[], Tensor]] = {
                "row-major": lambda x=x, w=w, c=conv: c(x, w),  # type: ignore[misc]
                "channels-last": lambda x=lx, w=lw, c=conv: c(x, w),  # type: ignore[misc]
                "channels-last, weight copied": (
                    lambda x=lx, w=w, c=conv: c(x, w.to(memory_format=last))  # type: ignore[misc]
                ),
            }
            wanted = calls["row-major"]()
            errors = {label: distance([call()], [wanted]) for label, call in calls.items()}
            for label, ms in timed(calls, device, 5).items():
                case = f"{name}, {'tf32' if dtype is torch.float32 else 'bf16'}"
                yield Row("convolutions", case, label, ms, "", errors[label], 1e-2)


# --- single kernels ------------------------------------------------------------------------------

KERNELS = ("batch norm, training", "cross-entropy", "column sum", "argmax", "softmax 512")


def run_kernels(device: str) -> Iterator[Row]:
    """Cases of `benchmarks.kernels_gpu` by the schedule as it is, and without shared moments."""
    kernels_gpu = importlib.import_module("benchmarks.kernels_gpu")  # it needs Triton
    targets = {"as it is": CUDA, "moments apart": dataclasses.replace(CUDA, moment_points=0)}
    wanted = [case for case in cases() if any(name in case.name for name in KERNELS)]
    bandwidth = kernels_gpu.copy_bandwidth()
    for case in wanted:
        for label, target in targets.items():
            if label != "as it is" and "batch norm" not in case.name:
                continue
            work = kernels_gpu.planned(case, target)
            row = kernels_gpu.run_case(case, work, bandwidth)
            figure = f"{row['share']:.3f} of a copy, goal {row['goal']}, kernels {row['kernels']}"
            most = 2 * row["eager_error"] + 1e-7
            yield Row("kernels", case.name, label, row["us"] / 1e3, figure, row["error"], most)


# --- models --------------------------------------------------------------------------------------

# Part of a case's name -> the pass that it is about.
MODELS: Mapping[str, str] = {
    "gpt2 bf16 8x512 inference": "align_products",
    "gpt2 bf16 8x512 training": "align_products",
    "resnet50 b32 inference": "prefer_channels_last",
    "bert-base bf16 16x512 inference": "align_products",
    "densenet121 b16 inference": "prefer_channels_last",
    "bert-base bf16 16x512 training": "align_products",
    "llama bf16 4x1024 inference": "",
    "resnet50 b32 training": "",
    "llama bf16 4x1024 training": "",
}
_RECORDING = "reduce-overhead"
_LEAST_ERROR = 1e-6  # eager may be exact by chance


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """options: of `braze.compile`; None: eager."""

    name: str
    options: Mapping[str, Any] | None


def variants(skipped: str) -> list[Variant]:
    """Eager, Braze without the pass, Braze, and Braze recorded."""
    found = [Variant("eager", None), Variant("braze", {})]
    if skipped:
        found.insert(1, Variant(f"braze without {skipped}", {"skip_passes": (skipped,)}))
    return [*found, Variant("braze, recorded", {"mode": _RECORDING})]


def results_of(
    case: GpuCase, compiled: Any, model: nn.Module, given: Any, loss: Any
) -> list[Tensor]:
    """What a call makes: its results, or the gradients where it trains."""
    if "training" not in case.name:
        model.eval()
        with torch.no_grad():
            return [x.detach().clone() for x in tensors_in(compiled(**given))]
    for parameter in model.parameters():
        parameter.grad = None
    loss(compiled(**given), given).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _quiet(model: nn.Module) -> nn.Module:
    """Without dropout, so that results can be compared."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def exact_results(case: GpuCase, model: nn.Module, given: Mapping[str, Any], loss: Any) -> Any:
    """What the model's float64 copy makes of the same numbers."""
    exact = copy.deepcopy(model).double()
    widened = {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in given.items()
    }
    return results_of(case, exact, exact, widened, loss)


def run_model(case: GpuCase, skipped: str, device: str, rounds: int = 7) -> Iterator[Row]:
    """A model's variants: time, memory, error. Each variant is warm before any is timed."""
    model, make_inputs, loss = case.build()
    _quiet(model)
    given = make_inputs()
    calls: dict[str, Callable[[], object]] = {}
    wanted = exact_results(case, model, given, loss)
    figures, errors = {}, {}
    for variant in variants(skipped):
        own = copy.deepcopy(model)
        options = variant.options
        compiled = own if options is None else braze.compile(own, options=dict(options))
        calls[variant.name] = case.call(compiled, own, make_inputs, loss)
        figures[variant.name] = peaks(calls[variant.name], device)
        errors[variant.name] = distance(results_of(case, compiled, own, given, loss), wanted)
    del wanted
    times = timed(calls, device, rounds)
    for name, ms in times.items():
        figure = f"{times['eager'] / ms:.2f}x, {figures[name]}"
        most = 2 * errors["eager"] + _LEAST_ERROR
        yield Row("models", case.name, name, ms, figure, errors[name], most)


def peaks(call: Callable[[], object], device: str) -> str:
    """Memory of the first calls, compile and recording included, above what was there, in MiB."""
    if device != "cuda":
        call()
        return ""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(6):
        call()
    torch.cuda.synchronize()
    allocated = torch.cuda.max_memory_allocated() - before[0]
    reserved = torch.cuda.max_memory_reserved() - before[1]
    return f"{allocated / 2**20:.0f} MiB allocated, {reserved / 2**20:.0f} reserved"


def run_models(device: str, chosen: Sequence[str] = ()) -> Iterator[Row]:
    """The models, those first that changes are about."""
    by_name = {case.name: case for case in CASES}
    for name, skipped in MODELS.items():
        if chosen and not any(part in name for part in chosen):
            continue
        yield from guarded(name, lambda n=name, s=skipped: run_model(by_name[n], s, device))  # type: ignore[misc]
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


# --- gradients -----------------------------------------------------------------------------------

_EXACT_CASE = "resnet50 b32 training"


def run_gradients(case: GpuCase) -> Iterator[Row]:
    """A case's gradients with TF32 forbidden: eager, Braze, and Braze without each of the graph
    passes, every one against float64."""
    library = torch.backends.cudnn
    with library.flags(enabled=library.enabled, allow_tf32=False):
        model, make_inputs, loss = case.build()
        _quiet(model)
        given = make_inputs()
        wanted = exact_results(case, model, given, loss)
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        options: dict[str, Any] = {"eager": None, "braze": {}}
        options |= {f"braze without {name}": {"skip_passes": (name,)} for name in GRAPH_PASSES}
        most = 0.0
        for label, chosen in options.items():
            own = copy.deepcopy(model)
            compiled = own if chosen is None else braze.compile(own, options=chosen)
            began = time.perf_counter()
            found = results_of(case, compiled, own, given, loss)
            error, ms = distance(found, wanted), (time.perf_counter() - began) * 1e3
            most = most or 2 * error + _LEAST_ERROR
            each = [distance([a], [b]) for a, b in zip(found, wanted, strict=True)]
            worst = max(range(len(each)), key=each.__getitem__)
            figure = f"worst {names[worst]} {each[worst]:.1e}, first call"
            yield Row("gradients", case.name, label, ms, figure, error, most)


# --- all of it -----------------------------------------------------------------------------------


def guarded(name: str, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """The rows; a failure is said and costs only what comes after it in the same part."""
    try:
        yield from rows()
    except Exception:
        print(f"FAILED {name}", flush=True)
        traceback.print_exc()


def collect(parts: Mapping[str, Callable[[], Iterator[Row]]], seconds: float) -> list[Row]:
    """The rows of all parts that begin before the time is up, printed as they come."""
    until = time.monotonic() + seconds
    rows: list[Row] = []
    for name, part in parts.items():
        for row in guarded(name, part):
            rows.append(row)
            print(row, flush=True)
            if time.monotonic() > until:
                print(f"the time is up in {name}", flush=True)
                return rows
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status says whether a result is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=440.0)
    parser.add_argument("--only", default="", help="parts, with commas")
    parser.add_argument("--cases", default="", help="parts of names of models, with commas")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device.", file=sys.stderr)
        return 1
    models = [part for part in chosen.cases.split(",") if part]
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "products": lambda: run_products("cuda"),
        "convolutions": lambda: run_convolutions("cuda"),
        "kernels": lambda: run_kernels("cuda"),
        "models": lambda: run_models("cuda", models),
        "gradients": lambda: run_gradients(next(c for c in CASES if c.name == _EXACT_CASE)),
    }
    wanted = [part for part in chosen.only.split(",") if part] or list(parts)
    rows = collect({name: parts[name] for name in wanted}, chosen.seconds)
    print("\n| part | case | variant | ms | figure | error |\n|---|---|---|---|---|---|")
    print("\n".join(map(str, rows)))
    return int(any(" WRONG" in str(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
