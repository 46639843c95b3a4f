"""Training steps of a plan, eagerly and compiled, in float64: the first difference in results,
parameters, gradients, the optimizer's state, rates, averages and versions, if there is one.

The versions of gradients are left out: the engine adds in place where two paths meet, and counts
that, and a compiled graph computes the sum.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import braze
from tests.fuzz.runner import SECONDS, Difference, TimedOut, time_limit
from tests.fuzz.training_plans import TrainingPlan

STEPS = 6
_OVERFLOWS = (1, 3)  # steps whose loss is infinite, where a scaler leaves them out
_CLOSE = {"rtol": 2e-6, "atol": 1e-9, "equal_nan": True}

# What is seen of one step: names, values, versions.
Seen = list[tuple[str, Any, int]]


def check_training(plan: TrainingPlan) -> Difference | None:
    """Run a plan both ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schedules, of checkpoints
        expected = list(_run(plan, lambda step: step))
        options: dict[str, Any] = {"suppress_errors": False}
        try:
            with time_limit(SECONDS):
                compile = braze.compile(backend=plan.backend, options=options)
                actual = list(_run(plan, compile))
        except (Exception, TimedOut) as error:
            text = "".join(traceback.format_exception(error))
            return Difference("crash", -1, text, type(error).__name__)
        finally:
            braze.reset()
    for number, (left, right) in enumerate(zip(expected, actual, strict=True)):
        found = _parted(left, right)
        if found is not None:
            return Difference("training", number, *found)
    return None


# --- private ---------------------------------------------------------------------------------


@final
class _Run:
    """A model and what trains it, made anew."""

    def __init__(self, plan: TrainingPlan) -> None:
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.model = _model(plan)
        self.parameters = list(self.model.parameters())
        if plan.is_frozen:
            self.parameters[0].requires_grad_(False)
        halves = [self.parameters[0::2], self.parameters[1::2]]
        groups = halves if plan.groups == 2 else [self.parameters]
        rated = [{"params": group, "lr": lr} for group, lr in zip(groups, (1e-2, 3e-3))]
        kind = getattr(optim, plan.optimizer)
        self.optimizer: optim.Optimizer = kind(rated, **dict(plan.options))
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=16.0, growth_interval=2, enabled=plan.is_scaled
        )
        self.schedule: Any = None
        if plan.schedule == "step":
            self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 2)
        elif plan.schedule:
            self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 5)
        self.averages = [p.detach().clone() for p in self.parameters]

    def step(self, batches: Sequence[torch.Tensor], factor: torch.Tensor) -> torch.Tensor:
        """What is compiled."""
        plan = self.plan
        self.optimizer.zero_grad(set_to_none=plan.to_none)
        total = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            total = total + self.backward(batch, factor)
        if plan.clips:
            self.scaler.unscale_(self.optimizer)
        if plan.clips == "value":
            nn.utils.clip_grad_value_(self.parameters, 0.1)
        elif plan.clips:
            order = 2.0 if plan.clips == "norm" else float("inf")
            nn.utils.clip_grad_norm_(self.parameters, 0.5, norm_type=order)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        if plan.averages:
            with torch.no_grad():
                for average, parameter in zip(self.averages, self.parameters):
                    average.lerp_(parameter, 0.1)
        return total

    def backward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        plan, scaler = self.plan, self.scaler
        if plan.penalty:
            x = x.detach().requires_grad_()
        y = self.forward(x)
        handle = y.register_hook(lambda gradient: gradient * 0.5) if plan.hooks else None
        loss = y.pow(2).mean() * factor
        if plan.penalty:
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss = loss + slope.pow(2).sum()
        scaler.scale(loss / plan.batches).backward(retain_graph=plan.backwards == 2)
        if plan.backwards == 2:
            scaler.scale(loss * 0.1).backward()
        if handle is not None:
            handle.remove()
        return loss.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.plan
        for number, layer in enumerate(self.model):
            if plan.checkpoint and number == plan.checkpoint_at:
                x = checkpoint(layer, x, use_reentrant=plan.checkpoint == "reentrant")
            else:
                x = layer(x)
            if plan.writes and number == 1:
                x = x * 1
                x[:1].mul_(2)
        return x

    def seen(self) -> Iterator[tuple[str, Any, int]]:
        """All that a step changes."""
        yield "scale", self.scaler.get_scale(), 0
        for number, group in enumerate(self.optimizer.param_groups):
            yield f"rate {number}", group["lr"], 0
        for number, parameter in enumerate(self.parameters):
            yield f"parameter {number}", parameter.detach().clone(), parameter._version
            gradient = parameter.grad
            yield f"gradient {number}", None if gradient is None else gradient.clone(), 0
            for name, value in self.optimizer.state[parameter].items():
                is_tensor = isinstance(value, torch.Tensor)
                kept, version = (value.clone(), value._version) if is_tensor else (value, 0)
                yield f"{name} {number}", kept, version
        for number, average in enumerate(self.averages):
            yield f"average {number}", average.clone(), average._version


def _model(plan: TrainingPlan) -> nn.ModuleList:
    width = plan.width
    shared = nn.Linear(width, width)
    made = nn.ModuleList()
    for kind in plan.layers:
        if kind == "shared":
            made.append(shared)
        elif kind == "tied":
            made.append(nn.Linear(width, width))
            made[-1].weight = shared.weight
        elif kind == "linear":
            made.append(nn.Linear(width, width))
        elif kind == "norm":
            made.append(nn.LayerNorm(width))
        elif kind == "tanh":
            made.append(nn.Tanh())
        else:
            made.append(nn.Sequential(nn.Linear(width, width), nn.GELU()))
    made.append(nn.Linear(width, 2))
    return made.double()


def _run(plan: TrainingPlan, compile: Callable[[Any], Any]) -> Iterator[Seen]:
    run = _Run(plan)
    step = compile(run.step)
    numbers = torch.Generator().manual_seed(plan.seed)
    for number in range(STEPS):
        batches = [
            torch.randn(3, plan.width, dtype=torch.float64, generator=numbers)
            for _ in range(plan.batches)
        ]
        factor = float("inf") if plan.is_scaled and number in _OVERFLOWS else 1.0
        try:
            result = step(batches, torch.tensor(factor, dtype=torch.float64))
        except Exception as error:  # eager's own, or a difference
            result = f"{type(error).__name__}: {error}"[:120]
        yield [("result", result, 0), *run.seen()]


def _parted(left: Seen, right: Seen) -> tuple[str, str] | None:
    """What differs, in words, and the kind of it."""
    names = [name for name, _, _ in left], [name for name, _, _ in right]
    if names[0] != names[1]:
        return f"{names[0]} and {names[1]}", "names"
    for (name, a, version), (_, b, other) in zip(left, right):
        kind = name.split()[0]
        if not _same(a, b):
            return f"{name}: eager {a}, compiled {b}", kind
        if version != other:
            return f"{name}: version {version} in eager, {other} compiled", f"version of {kind}"
    return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        is_alike = (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        return is_alike and torch.allclose(a, b, **_CLOSE)
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) < 1e-9
    return type(a) is type(b) and bool(a == b)
