"""Programs of a few operators that a compiler made slower than eager once, on a GPU.

    python -m benchmarks.never_slower_gpu [--only rotary] [--rounds 15] [--alone] [--cold]

Eager, torch.compile and Braze take turns in each round (`benchmarks.timing`); milliseconds of a
call by the host's clock, medians. "graphs" are Braze's: lengths that change are to need three at
most. `--alone` leaves torch.compile out. `--cold` compiles two models' training from nothing
instead, and prints the seconds until the first gradients are there; caches have to be empty
(`BRAZE_CACHE=0`). `--calls` prints the first calls of an image model, each over eager's median.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import braze
from benchmarks.timing import Arguments, interleave

Tensor = torch.Tensor
HALF = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Case:
    """program: takes what `arguments` makes. trains: the gradients of its result's sum, too."""

    program: Callable[..., Any]
    arguments: Arguments
    trains: bool = False


def cases(device: str, scale: int) -> Mapping[str, Case]:
    """Every case; sizes are divided by `scale`."""
    return {
        "attention, eight lengths in turn": _lengths(device, scale),
        "index_add of rows": _rows(device, scale),
        "scatter_add of columns": _columns(device, scale),
        "rotary embedding by complex numbers": _rotary(device, scale),
        "rotary embedding of even and odd positions": _interleaved(device, scale),
        "sdpa_kernel by a default argument": _sdpa_kernel(device, scale),
        "foreach over 48 small tensors": _foreach(device),
        "spectral convolution, training": _spectral(device),
        "kl_div of 50,304 classes": _divergence(device, scale),
    }


def compiled_steps(case: Case, peer: bool) -> dict[str, Callable[..., Any]]:
    """Name -> one call of it."""
    programs = {"eager": case.program, "Braze": braze.compile(case.program)}
    if peer:
        programs["torch.compile"] = torch.compile(case.program)
    return {name: _step(one, case.trains) for name, one in programs.items()}


def measure(name: str, case: Case, device: str, rounds: int, peer: bool) -> None:
    """One line of the table."""
    braze.reset()
    steps = compiled_steps(case, peer)
    for _ in range(12):  # what is compiled for good, and recorded, is so now
        for step in steps.values():
            args, kwargs = case.arguments()
            step(*args, **kwargs)
    times = interleave(steps, case.arguments, device, rounds)
    medians = {system: statistics.median(found) * 1e3 for system, found in times.items()}
    graphs = sum(row.graphs for row in braze.status().rows)
    shown = ", ".join(f"{system} {ms:.3f}" for system, ms in medians.items())
    share = medians["Braze"] / medians["eager"]
    print(f"{name:38s} of eager {share:.2f}; graphs {graphs}; ms: {shown}", flush=True)


def first_calls(device: str, count: int) -> None:
    """Each of the first calls of an image model over the median of eager's calls."""
    import torchvision

    model = torchvision.models.densenet121().to(device).eval()
    image = torch.randn(16, 3, 128, 128, device=device)
    with torch.no_grad():
        eager = [_seconds(model, image, device) for _ in range(count)]
        compiled = braze.compile(model)
        found = [_seconds(compiled, image, device) for _ in range(count)]
    usual = statistics.median(eager[3:])
    print("first calls over eager's:", " ".join(f"{seconds / usual:.2f}" for seconds in found))


def cold_training(device: str) -> None:
    """Seconds of two models' first training step."""
    import transformers

    bert = transformers.BertConfig()
    whisper = transformers.WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    )
    words = torch.randint(30000, (8, 128), device=device)
    sounds = torch.randn(8, 80, 3000, device=device, dtype=HALF)
    models: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
        "BERT-base": (
            lambda: transformers.BertForMaskedLM(bert),
            {"input_ids": words, "labels": words},
        ),
        "Whisper-small": (
            lambda: transformers.WhisperForConditionalGeneration(whisper),
            {"input_features": sounds, "decoder_input_ids": words, "use_cache": False},
        ),
    }
    for name, (make, given) in models.items():
        model = make().to(device, HALF).train()
        model(**given).logits.float().mean().backward()  # what eager's first call takes
        compiled = braze.compile(model)
        _wait(device)
        began = time.perf_counter()
        compiled(**given).logits.float().mean().backward()
        _wait(device)
        print(f"{name}: first training step {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="a part of a case's name")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    parser.add_argument("--cold", action="store_true", help="first training steps")
    parser.add_argument("--calls", action="store_true", help="first calls")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.cold:
        cold_training(args.device)
    elif args.calls:
        first_calls(args.device, 12)
    else:
        for name, case in cases(args.device, 1 if args.device == "cuda" else 32).items():
            if args.only in name:
                measure(name, case, args.device, args.rounds, not args.alone)


# --- cases -----------------------------------------------------------------------------------


def _lengths(device: str, scale: int) -> Case:
    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True) + 1

    sizes = [1033, 700, 2048, 1500, 900, 1201, 333, 1999]
    given = [torch.randn(4, 8, n // scale, 64, device=device, dtype=HALF) for n in sizes]
    return Case(attention, _in_turn(given))


def _rows(device: str, scale: int) -> Case:
    nodes, edges = 50000 // scale, 800000 // scale
    source, target = (torch.randint(nodes, (edges,), device=device) for _ in range(2))
    features = torch.randn(nodes, 128, device=device)

    def gathered(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add_(0, target, x[source])

    return Case(gathered, lambda: ((features, source, target), {}))


def _columns(device: str, scale: int) -> Case:
    nodes, edges = 50000 // scale, 400000 // scale
    target = torch.randint(nodes, (edges, 1), device=device).expand(edges, 64)
    messages = torch.randn(edges, 64, device=device)

    def scattered(messages: Tensor, target: Tensor) -> Tensor:
        return messages.new_zeros(nodes, 64).scatter_add_(0, target, messages * 2)

    return Case(scattered, lambda: ((messages, target), {}))


def _rotary(device: str, scale: int) -> Case:
    queries = torch.randn(8, 2048 // scale, 32, 64, 2, device=device)
    turns = torch.polar(
        torch.ones(2048 // scale, 64, device=device), torch.randn(2048 // scale, 64, device=device)
    )

    def turned(q: Tensor, by: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(q) * by[None, :, None])

    return Case(turned, lambda: ((queries, turns), {}))


def _interleaved(device: str, scale: int) -> Case:
    queries = torch.randn(8, 2048 // scale, 32, 128, device=device, dtype=HALF)
    sines, cosines = (torch.randn(2048 // scale, 64, device=device) for _ in range(2))

    def turned(q: Tensor, sines: Tensor, cosines: Tensor) -> Tensor:
        even, odd = q[..., 0::2], q[..., 1::2]
        sin, cos = sines[None, :, None], cosines[None, :, None]
        parts = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
        return parts.flatten(-2).to(q.dtype)

    return Case(turned, lambda: ((queries, sines, cosines), {}))


def _sdpa_kernel(device: str, scale: int) -> Case:
    q = torch.randn(4, 16, 2048 // scale, 64, device=device, dtype=HALF)
    backend = SDPBackend.FLASH_ATTENTION if device == "cuda" else SDPBackend.MATH

    def chosen(q: Tensor, backend: SDPBackend = backend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    return Case(chosen, lambda: ((q,), {}))


def _foreach(device: str) -> Case:
    tensors = [torch.randn(64 + n, device=device) for n in range(48)]

    def scaled(tensors: list[Tensor]) -> tuple[Tensor, ...]:
        return torch._foreach_add(torch._foreach_mul(tensors, 0.9), 0.1)

    return Case(scaled, lambda: ((tensors,), {}))


def _spectral(device: str) -> Case:
    weight = torch.randn(32, 32, 12, 12, dtype=torch.cfloat, device=device, requires_grad=True)
    image = torch.randn(8, 32, 64, 64, device=device, requires_grad=True)

    def spectral(x: Tensor, weight: Tensor) -> Tensor:
        waves = torch.fft.rfft2(x)
        out = torch.zeros_like(waves)
        out[:, :, :12, :12] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :12, :12], weight)
        return torch.fft.irfft2(out, s=x.shape[-2:])

    return Case(spectral, lambda: ((image, weight), {}), trains=True)


def _divergence(device: str, scale: int) -> Case:
    a, b = (torch.randn(8192 // scale, 50304, device=device, dtype=HALF) for _ in range(2))

    def divergence(a: Tensor, b: Tensor) -> Tensor:
        first, second = a.float().log_softmax(-1), b.float().log_softmax(-1)
        return F.kl_div(first, second, log_target=True, reduction="batchmean")

    return Case(divergence, lambda: ((a, b), {}))


# --- private ---------------------------------------------------------------------------------


def _in_turn(given: list[Tensor]) -> Arguments:
    turns: Iterator[Tensor] = itertools.cycle(given)
    return lambda: ((next(turns),), {})


def _step(program: Callable[..., Any], trains: bool) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        if not trains:
            with torch.no_grad():
                return program(*args, **kwargs)
        leaves = [x for x in args if isinstance(x, Tensor) and x.requires_grad]
        return torch.autograd.grad(program(*args, **kwargs).sum(), leaves)

    return step


def _seconds(function: Callable[..., Any], value: Tensor, device: str) -> float:
    _wait(device)
    began = time.perf_counter()
    function(value)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
