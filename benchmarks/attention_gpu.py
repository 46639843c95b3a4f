"""Attention that a program writes out: eager, torch.compile, and Braze with the library's kernel.

    python -m benchmarks.attention_gpu [--lengths 128,1024] [--only causal] [--peer 512,2048]
                                       [--dtype float32] [--width 128] [--rounds 15]

    plain      softmax(q @ k.T * scale) @ v
    causal     the same, masked by positions: known when it is compiled
    masked     masked_fill by a buffer, as nanoGPT has it
    padded     -1e9 for padded keys of each of the batch
    added      a causal mask with padding, 0 or the lowest number, added as transformers does

8,192 tokens of 12 heads in each call, whatever their length; heads lie as a projection leaves
them. "kernel" is Braze with every attention given to the library, "products" is Braze without the
pass: where they cross is what `WORTH` in `rewrite/fuse_attention.py` is set to. torch.compile takes
seconds a case, and is measured at the lengths of --peer alone. All take turns in each round; times
are medians of milliseconds on the device's clock, "training" is forward and backward. Peaks are
what one call allocates beside its inputs. Errors are root mean squares against float64 over
eager's, of the result and, in training, of the worst gradient.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import braze
from braze.rewrite.fuse_attention import Worth, fuse_attention

TOKENS, HEADS = 8192, 12
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
PEER_LENGTHS = (512, 2048)
_SAMPLE_MS = 4.0

Step = Callable[..., Sequence[torch.Tensor]]


def plain(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """No mask."""
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, -1) @ v


def causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A mask of positions."""
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A mask that is an input."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(mask == 0, float("-inf")), -1) @ v


def padded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The last quarter of the keys is hidden."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(mask[-1] == 0, -1e9), -1) @ v


def added(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A mask that is added."""
    nothing = torch.zeros((), dtype=q.dtype, device=q.device)
    chosen = torch.where(mask != 0, nothing, torch.finfo(q.dtype).min)
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + chosen, -1) @ v


CASES: Mapping[str, Callable[..., Any]] = {
    program.__name__: program for program in (plain, causal, masked, padded, added)
}


def inputs_of(length: int, width: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Query, keys, values with their heads inside, and a mask of ones and zeros."""
    batch = max(TOKENS // length, 1)
    joined = torch.randn(batch, length, 3, HEADS, width, dtype=dtype, device=device)
    mask = torch.ones(length, length, device=device).tril()
    mask[-1, -max(length // 4, 1) :] = 0
    return [x.transpose(1, 2) for x in joined.unbind(2)] + [mask]


def step_of(program: Callable[..., Any], trains: bool) -> Step:
    """One call: the result, and the gradients of query, keys and values."""

    def step(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        if not trains:
            with torch.no_grad():
                return [program(*inputs)]
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        result = program(*leaves, *inputs[3:])
        return [result, *torch.autograd.grad(result, leaves, torch.ones_like(result) + result)]

    return step


def variants(program: Callable[..., Any], trains: bool, with_peer: bool) -> dict[str, Step]:
    """Name -> one call of it."""
    products = {"skip_passes": ("fuse_attention",)}
    found: dict[str, Any] = {
        "eager": program,
        "kernel": braze.compile(program, dynamic=False),
        "products": braze.compile(program, dynamic=False, options=products),
    }
    if with_peer:
        found["torch.compile"] = torch.compile(program, dynamic=False)
    return {name: step_of(one, trains) for name, one in found.items()}


def interleaved(steps: Mapping[str, Step], inputs: Sequence[Any], rounds: int) -> dict[str, float]:
    """Medians of milliseconds a call."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    counts = {
        name: max(1, int(_SAMPLE_MS / max(_sample(s, inputs, 2), 1e-3)))
        for name, s in steps.items()
    }
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(_sample(step, inputs, counts[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _sample(step: Step, inputs: Sequence[Any], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        step(*inputs)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def peak(step: Step, inputs: Sequence[Any]) -> float:
    """MiB that one call allocates at most."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(*inputs)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / (1 << 20)


def errors(
    steps: Mapping[str, Step], exact: Step, inputs: Sequence[torch.Tensor]
) -> dict[str, str]:
    """Of the result and of the worst gradient, over eager's."""
    reference = exact(*(x.double() for x in inputs))
    found = {
        name: [_rms(x, y) for x, y in zip(step(*inputs), reference, strict=True)]
        for name, step in steps.items()
    }
    eager = found.pop("eager")
    ratios = {
        name: [mine / max(theirs, 1e-12) for mine, theirs in zip(one, eager, strict=True)]
        for name, one in found.items()
    }
    return {
        name: " ".join(f"{x:.2f}" for x in (one[0], *([max(one[1:])] if one[1:] else [])))
        for name, one in ratios.items()
    }


def _rms(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.detach().double() - reference.detach()).square().mean().sqrt())


def measure(name: str, length: int, trains: bool, asked: argparse.Namespace) -> str:
    """One line of the table."""
    braze.reset()
    inputs = inputs_of(length, asked.width, getattr(torch, asked.dtype), "cuda")
    steps = variants(CASES[name], trains, length in asked.peer)
    for step in steps.values():
        for _ in range(3):
            step(*inputs)
    times = interleaved(steps, inputs, asked.rounds)
    peaks = {one: peak(step, inputs) for one, step in steps.items()}
    found = errors(steps, step_of(CASES[name], trains), inputs)
    columns = ["eager", "kernel", "products", "torch.compile"]
    eager = times["eager"]
    cells = [name, "training" if trains else "inference", f"{length}", f"{eager:.3f}"]
    cells += [f"{eager / times[one]:.2f}x" if one in times else "" for one in columns[1:]]
    cells += [f"{peaks[one]:.0f}" if one in peaks else "" for one in columns]
    cells += [found.get(one, "") for one in columns[1:]]
    return "| " + " | ".join(cells) + " |"


HEADER = (
    "| case | work | length | eager ms | kernel | products | torch.compile "
    "| MiB: eager | kernel | products | torch.compile "
    "| error: kernel | products | torch.compile |"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--peer", default=",".join(map(str, PEER_LENGTHS)))
    parser.add_argument("--only", default="plain,causal,masked", help=", ".join(CASES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    asked.peer = {int(one) for one in asked.peer.split(",") if one}
    always = Worth(frozenset({getattr(torch, asked.dtype)}), count=1, trained=1)
    sys.modules[fuse_attention.__module__].WORTH["cuda"] = always  # type: ignore[attr-defined]
    print(torch.cuda.get_device_name(), torch.__version__, asked.dtype, "heads of", asked.width)
    print(HEADER, "|" + " --- |" * HEADER.count(" | ") + " --- |", sep="\n")
    for name in asked.only.split(","):
        for trains in (False, True):
            for length in map(int, asked.lengths.split(",")):
                print(measure(name, length, trains, asked), flush=True)


if __name__ == "__main__":
    main()
