"""What the commands `benchmarks.demo` and `benchmarks.compare` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console, RenderableType

from benchmarks.harness import ALL_SYSTEMS, Plan, measure_all
from benchmarks.models import EIGHT, MODELS
from benchmarks.plot import draw
from benchmarks.progress import ProgressBar
from benchmarks.request import DTYPES, GRAD_MODES, Settings
from benchmarks.results import ModelResult, Report, failures, write_json
from benchmarks.systems import BRAZE, EAGER, SYSTEMS
from benchmarks.work import WORKS

_WIDTH_WITHOUT_TERMINAL = 180
_QUICK_MODELS = ("resnet18", "bert", "llama")
# A convolutional network, an encoder and a decoder: minutes, most of them torch.compile's compiles.
DEMO_MODELS = ("resnet18", "bert", "gpt2")
_QUICK_ROUNDS = 10


def parser(
    description: str, dtypes: tuple[str, ...], out: str, usual: tuple[str, ...] = EIGHT
) -> argparse.ArgumentParser:
    """The options of both commands. usual: the models that are measured where none are named."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "--models",
        help=f"names with commas between, or 'all' (default: {', '.join(usual)}). There are: "
        f"{', '.join(MODELS)}",
    )
    options.add_argument("--dtype", default=",".join(dtypes), help=f"of {', '.join(DTYPES)}")
    options.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    options.add_argument("--rounds", type=int, default=30, help="interleaved rounds (default: 30)")
    options.add_argument("--threads", type=int, help="default: as torch chooses")
    options.add_argument("--grad-mode", choices=sorted(GRAD_MODES), default="no_grad")
    works = "; ".join(f"{work.name}: {work.title}" for work in WORKS.values())
    options.add_argument(
        "--work", choices=list(WORKS), default="forward", help=f"what is called ({works})"
    )
    options.add_argument("--torch-mode", help="mode of torch.compile (default: its default)")
    options.add_argument("--braze-mode", help="mode of Braze (default: its default)")
    options.add_argument(
        "--systems",
        default=",".join(ALL_SYSTEMS),
        help=f"which to measure, of {', '.join(SYSTEMS)} (default: %(default)s)",
    )
    options.add_argument("--out", type=Path, default=Path(out), help=f"folder (default: {out})")
    options.add_argument(
        "--quick",
        action="store_true",
        help=f"{_QUICK_ROUNDS} rounds, and of the models only {', '.join(_QUICK_MODELS)}",
    )
    options.add_argument(
        "--brief",
        action="store_true",
        help="compare: without overhead and without cold compiles after a trivial one",
    )
    options.add_argument(
        "--limit",
        type=float,
        default=1200.0,
        help="seconds for all processes of one model and dtype together (default: 1200)",
    )
    options.add_argument("--verbose", action="store_true", help="show what failed processes print")
    return options


def plan_of(chosen: argparse.Namespace, full: bool, usual: tuple[str, ...] = EIGHT) -> Plan:
    """The plan that the options ask for; SystemExit that lists the valid names for a wrong one.
    usual: the models that are measured where none are named."""
    usual = _QUICK_MODELS if chosen.quick else usual
    wanted = ",".join(MODELS) if chosen.models == "all" else chosen.models
    threads = chosen.threads or torch.get_num_threads()
    settings = Settings(
        device=_device(chosen.device),
        grad_mode=chosen.grad_mode,
        rounds=_QUICK_ROUNDS if chosen.quick else chosen.rounds,
        threads=threads,
        torch_mode=chosen.torch_mode,
        braze_mode=chosen.braze_mode,
        work=chosen.work,
    )
    return Plan(
        models=_names("model", wanted, MODELS) if wanted else usual,
        dtypes=_names("dtype", chosen.dtype, DTYPES),
        settings=settings,
        systems=_names("system", chosen.systems, SYSTEMS),
        full=full,
        brief=chosen.brief,
        limit_s=chosen.limit,
    )


def _names(kind: str, text: str, valid: object) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    known = list(valid)  # type: ignore[call-overload]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SystemExit(f"no {kind} {', '.join(unknown) or text!r}; there are: {', '.join(known)}")
    return names


def _device(name: str) -> str:
    if torch.device(name).type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: this build of torch sees no CUDA device")
    return name


def run_command(
    chosen: argparse.Namespace,
    plan: Plan,
    name: str,
    tables: Callable[[Report], RenderableType],
) -> int:
    """Measure, print, write `name`.json and a picture a dtype; 1 where Braze or eager failed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_WITHOUT_TERMINAL)
    json_path = chosen.out / f"{name}.json"

    def keep(report: Report) -> None:
        write_json(report, json_path)
        console.print(row_of(report.models[-1]), highlight=False, markup=False)

    with ProgressBar(console, chosen.verbose) as progress:
        report = measure_all(plan, progress, keep)
    console.print(tables(report))
    write_json(report, json_path)
    written = [json_path]
    for dtype in report.dtypes:
        suffix = "" if len(report.dtypes) == 1 else f"-{dtype}"
        written.append(chosen.out / f"{name}{suffix}.png")
        draw(report, dtype, written[-1])
    console.print("written: " + ", ".join(map(str, written)), highlight=False)
    return _verdict(report, plan, console)


def row_of(result: ModelResult) -> str:
    """A model's figures as one line, before the tables can be made."""
    parts = []
    for system, found in result.systems.items():
        ratio = f" ({found.time_ratio.median:.3f})" if found.time_ratio else ""
        time = "failed" if found.median_ms is None else f"{found.median_ms:.1f} ms{ratio}"
        cold = found.cold_compile
        parts.append(f"{system} {time}" + (f", cold {cold.wall_s:.1f} s" if cold else ""))
    return f"{result.title} {result.dtype}: " + "; ".join(parts)


def _verdict(report: Report, plan: Plan, console: Console) -> int:
    lines = [line for system in (EAGER, BRAZE) for line in failures(report, system)]
    runs = len(plan.models) * len(plan.dtypes)
    if lines:
        console.print(f"[bold red]FAILED[/]: {len(lines)} failures of Braze or eager, see above")
        return 1
    if BRAZE in plan.systems:
        console.print(f"[bold green]passed[/]: Braze is right on {runs} of {runs}")
    return 0
