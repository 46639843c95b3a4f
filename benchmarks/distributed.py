"""Training steps of several processes: DDP and FSDP2 around compiled models, beside eager and
torch.compile.

    python -m benchmarks.distributed [--wrappers ddp,fsdp2] [--systems eager,torch_compile,braze]
        [--device cuda --processes 2 --layers 16 --width 2048 --tokens 2048 --rounds 10]

A decoder of Llama's kind with random weights. Under DDP the whole model is compiled and wrapped, as
`DDP(compile(model))`; under FSDP2 each layer is compiled and sharded. A step is forward, backward
and SGD. Each system has a model of its own, and all take turns in the same processes, in an order
drawn anew each round, which is the same in each. The table has, of the first process: the median
step in milliseconds, its ratio to eager's in the same rounds, what a step adds to the memory that
lies allocated, and of the time in which NCCL's kernels run the share with others beside them. The
command ends with status 1 where the losses of the first steps are not eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks.clocks import synchronize
from benchmarks.systems import SYSTEMS
from benchmarks.timing import turns

WRAPPERS = ("ddp", "fsdp2")
VOCABULARY = 32_000
_MIB = 1 << 20
_HEAD = 64
_SEED = 0
_FIRST_STEPS = 6

# (begin, end) of a kernel, in microseconds.
Interval: TypeAlias = tuple[float, float]


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What is trained: layers of `width`, `batch` sequences of `tokens` for each process."""

    device: str
    processes: int
    layers: int
    width: int
    batch: int
    tokens: int
    rounds: int
    dtype: str


@final
@dataclass(frozen=True, slots=True)
class Steps:
    """One system's figures. seconds: a step, one a round; memory: MiB that a step adds at most.
    overlap: share of NCCL's time with other kernels beside it, None where none ran. losses: of the
    first steps, by which it is told whether systems compute the same."""

    seconds: tuple[float, ...]
    memory: float
    overlap: float | None
    losses: tuple[float, ...]


class Layer(nn.Module):
    """A decoder layer: attention and a gated projection, each behind an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // _HEAD)
        hidden = width * 11 // 4 // 16 * 16
        self.before_attention = nn.RMSNorm(width)
        self.before_projection = nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).chunk(3, -1)
        q, k, v = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.before_projection(x)
        out: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return out


class Decoder(nn.Module):
    """Embedding, layers, and the logits of the next token."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, setting.width)
        self.layers = nn.ModuleList(Layer(setting.width) for _ in range(setting.layers))
        self.norm = nn.RMSNorm(setting.width)
        self.logits = nn.Linear(setting.width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.logits(self.norm(x))
        return out


def overlap_share(communication: Sequence[Interval], others: Sequence[Interval]) -> float | None:
    """The share of communication's time in which one of the others runs; None without any."""
    total = sum(end - begin for begin, end in communication)
    if not total:
        return None
    covered, merged = 0.0, _merged(others)
    for begin, end in _merged(communication):
        covered += sum(max(0.0, min(end, last) - max(begin, first)) for first, last in merged)
    return covered / sum(end - begin for begin, end in _merged(communication))


def run(setting: Setting, wrapper: str, systems: Sequence[str]) -> dict[str, Steps]:
    """The figures of each system, from processes of their own. Raises what a process raises."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        arguments = (setting, wrapper, tuple(systems), _free_port(), str(found))
        torch.multiprocessing.spawn(  # type: ignore[no-untyped-call]
            _process, arguments, nprocs=setting.processes
        )
        rows = json.loads(found.read_text())
    return {
        name: Steps(tuple(row["seconds"]), row["memory"], row["overlap"], tuple(row["losses"]))
        for name, row in rows.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    names = ("device", "processes", "layers", "width", "batch", "tokens", "rounds", "dtype")
    setting = Setting(**{name: getattr(options, name) for name in names})
    systems = options.systems.split(",")
    wrong = False
    report: dict[str, Any] = {"setting": asdict(setting), "torch": torch.__version__}
    print(f"{'wrapper':8}{'system':24}{'ms':>9}{'of eager':>10}{'MiB':>9}{'beside NCCL':>13}")
    for wrapper in options.wrappers.split(","):
        found = run(setting, wrapper, systems)
        report[wrapper] = {name: asdict(steps) for name, steps in found.items()}
        for name, steps in found.items():
            print(_row(wrapper, name, steps, found.get("eager")), flush=True)
            if "eager" in found and not _alike(steps.losses, found["eager"].losses):
                wrong = True
                print(f"losses {steps.losses}, eager's {found['eager'].losses}")
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(wrong)


# --- private ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--wrappers", default=",".join(WRAPPERS))
    options.add_argument("--systems", default="eager,torch_compile,braze")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, usual in {"processes": 2, "layers": 16, "width": 2048, "batch": 1}.items():
        options.add_argument(f"--{name}", type=int, default=usual)
    options.add_argument("--tokens", type=int, default=2048)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--out", type=Path, help="a JSON file")
    return options


def _process(
    rank: int, setting: Setting, wrapper: str, systems: Sequence[str], port: int, out: str
) -> None:
    on_gpu = setting.device == "cuda"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if on_gpu:
        torch.cuda.set_device(rank)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=setting.processes)
    try:
        steps = {name: _step(setting, wrapper, name, rank) for name in systems}
        losses = {
            name: tuple(float(step()) for _ in range(_FIRST_STEPS)) for name, step in steps.items()
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for name in turns(steps, setting.rounds, _SEED):
            steps[name]()  # finds caches and the allocator as another system left them
            times[name].append(_seconds(steps[name], setting.device))
        rows = {}
        for name, step in steps.items():
            memory = _memory(step) if on_gpu else 0.0
            overlap = _overlap(step) if on_gpu else None
            rows[name] = asdict(Steps(tuple(times[name]), memory, overlap, losses[name]))
        if rank == 0:
            Path(out).write_text(json.dumps(rows))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _step(setting: Setting, wrapper: str, system: str, rank: int) -> Callable[[], torch.Tensor]:
    """A training step of one system's own model."""
    device = torch.device(setting.device, rank) if setting.device == "cuda" else torch.device("cpu")
    torch.manual_seed(_SEED)
    model: nn.Module = Decoder(setting).to(device, getattr(torch, setting.dtype))
    compile_one = SYSTEMS[system].compile
    if wrapper == "ddp":
        compiled = compile_one(model, None)
        on = [rank] if setting.device == "cuda" else None
        called: Any = nn.parallel.DistributedDataParallel(compiled, device_ids=on)
    else:
        from torch.distributed.fsdp import fully_shard

        layers = model.layers
        assert isinstance(layers, nn.ModuleList)
        for place, layer in enumerate(layers):
            layers[place] = compile_one(layer, None)
            fully_shard(layers[place])
        called = fully_shard(model)
    optimizer = torch.optim.SGD(called.parameters(), lr=1e-3)
    generator = torch.Generator(device).manual_seed(rank)
    shape = (setting.batch, setting.tokens + 1)
    text = torch.randint(VOCABULARY, shape, device=device, generator=generator)

    def step() -> torch.Tensor:
        logits = called(text[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _seconds(step: Callable[[], object], device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - start


def _memory(step: Callable[[], object]) -> float:
    synchronize("cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    synchronize("cuda")
    return (torch.cuda.max_memory_allocated() - before) / _MIB


def _overlap(step: Callable[[], object]) -> float | None:
    """Of three steps under the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            step()
        synchronize("cuda")
    communication: list[Interval] = []
    others: list[Interval] = []
    for event in profiled.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            interval = (float(event.time_range.start), float(event.time_range.end))
            (communication if "nccl" in event.name.lower() else others).append(interval)
    return overlap_share(communication, others)


def _alike(losses: Sequence[float], eager: Sequence[float]) -> bool:
    return all(abs(a - b) <= 0.02 * abs(b) for a, b in zip(losses, eager, strict=True))


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _row(wrapper: str, name: str, steps: Steps, eager: Steps | None) -> str:
    ratio = "-"
    if eager is not None:
        pairs = zip(steps.seconds, eager.seconds, strict=True)
        ratio = f"{statistics.median(mine / theirs for mine, theirs in pairs):.3f}"
    overlap = "-" if steps.overlap is None else f"{steps.overlap:.2f}"
    milliseconds = statistics.median(steps.seconds) * 1e3
    return f"{wrapper:8}{name:24}{milliseconds:9.2f}{ratio:>10}{steps.memory:9.0f}{overlap:>13}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
