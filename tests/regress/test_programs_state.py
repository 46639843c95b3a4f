"""Programs that keep state: helpers of training loops, configurations, modules."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.regress.programs import check, tensor

PROGRAMS: list[Any] = []


def program(make):
    """Register a maker of (function, arguments)."""
    PROGRAMS.append(make)
    return make


# --- training-loop helpers -----------------------------------------------------------------------


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total = self.total + value * n
        self.count += n

    @property
    def average(self):
        return self.total / max(self.count, 1)


@program
def meter_of_tensors():
    def f(meter, x):
        for row in x:
            meter.update(row.mean(), n=row.numel())
        return meter.average

    return f, (AverageMeter("loss"), tensor(3, 4))


@program
def meter_of_items():
    def f(meter, x):
        meter.update(x.mean().item())
        meter.update(x.max().item(), n=2)
        return meter.average, x * meter.count

    return f, (AverageMeter("loss"), tensor(3, 4))


@program
def moving_average_of_parameters():
    def f(target, source, decay):
        with torch.no_grad():
            for a, b in zip(target.parameters(), source.parameters()):
                a.mul_(decay).add_(b, alpha=1 - decay)
        return target

    torch.manual_seed(0)
    return f, (nn.Linear(3, 2), nn.Linear(3, 2), 0.9)


@program
def clip_by_norm():
    def f(tensors, limit):
        norm = torch.sqrt(sum(t.pow(2).sum() for t in tensors))
        scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
        for t in tensors:
            t.mul_(scale)
        return norm

    return f, ([tensor(3), tensor(2, 2)], 0.5)


@program
def learning_rate_schedule():
    class Schedule:
        def __init__(self, base, warmup):
            self.base, self.warmup, self.step_count = base, warmup, 0

        def step(self):
            self.step_count += 1
            if self.step_count < self.warmup:
                return self.base * self.step_count / self.warmup
            return self.base * 0.5 * (1 + math.cos(math.pi * self.step_count / 100))

    def f(schedule, x):
        for _ in range(3):
            x = x - schedule.step() * x.sign()
        return x, schedule

    return f, (Schedule(0.1, 2), tensor(4))


@program
def early_stopping():
    def f(losses, patience):
        best, bad = math.inf, 0
        for index, loss in enumerate(losses):
            value = float(loss)
            if value < best:
                best, bad = value, 0
            else:
                bad += 1
                if bad >= patience:
                    return index, best
        return -1, best

    return f, ([torch.tensor(v) for v in (3.0, 2.0, 2.5, 2.6, 1.0)], 2)


@program
def gradient_accumulation():
    def f(chunks, log):
        total = torch.zeros(())
        for i, chunk in enumerate(chunks):
            total += chunk.pow(2).mean()
            if (i + 1) % 2 == 0:
                log.append(total.clone())
                total = torch.zeros(())
        return total, len(log)

    return f, (list(tensor(6, 2).chunk(3)), [])


def _trained_by(optimizer_class, **settings):
    def f(model, optimizer, x):
        loss = model(x).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach(), len(optimizer.state)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = optimizer_class(model.parameters(), lr=0.01, **settings)
    return f, (model, optimizer, tensor(2, 3))


@program
def training_step_with_momentum():
    return _trained_by(torch.optim.SGD, momentum=0.9)


@program
def training_step_with_adam():
    return _trained_by(torch.optim.AdamW)


@program
def gradient_of_the_input():
    def f(x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            y = (z * z).sum()
            (gradient,) = torch.autograd.grad(y, z)
        return gradient, y.detach()

    return f, (tensor(3),)


@program
def hook_of_a_tensor():
    def f(x, log):
        y = x * 2
        y.register_hook(lambda g: log.append(g.sum()) or g * 2)
        y.sum().backward()
        return y.detach()

    return f, (tensor(2).requires_grad_(), [])


@program
def factory_with_side_effects():
    made = []

    def factory():
        made.append(1)
        return torch.zeros(2)

    def f(table, x):
        table["a"] = table["a"] + x
        table["b"].add_(1)
        fresh = collections.defaultdict(factory)
        fresh["c"] += x
        return fresh["c"], len(made), sorted(table)

    return f, (collections.defaultdict(factory), tensor(2))


@program
def written_and_deleted_again():
    def f(table, holder, x):
        table["new"] = x
        del table["new"]
        holder.name = 1
        del holder.name
        return "new" in table, hasattr(holder, "name"), x + 1

    return f, ({}, types.SimpleNamespace(), tensor(2))


@program
def metrics_by_key():
    def f(outputs, metrics):
        for key, value in outputs.items():
            metrics.setdefault(key, []).append(value.mean())
        metrics["count"] = metrics.get("count", 0) + 1
        return {k: torch.stack(v).mean() for k, v in metrics.items() if isinstance(v, list)}

    return f, ({"a": tensor(2), "b": tensor(3)}, {"a": [torch.ones(())]})


# --- configurations ------------------------------------------------------------------------------


class Activation(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

    def apply(self, x):
        return {Activation.RELU: torch.relu, Activation.GELU: nn.functional.gelu}[self](x)


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 4
    activation: Activation = Activation.GELU
    scales: tuple[float, ...] = (1.0, 0.5)
    extra: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def half(self):
        return self.width // 2

    def with_width(self, width):
        return dataclasses.replace(self, width=width)


@program
def frozen_config():
    def f(config, x):
        smaller = config.with_width(2)
        x = config.activation.apply(x)[..., : smaller.width]
        for scale in config.scales:
            x = x * scale
        return x, smaller, config.half, dataclasses.asdict(smaller)["width"]

    return f, (Config(), tensor(2, 4))


@dataclasses.dataclass
class State:
    step: int = 0
    best: float | None = None
    history: list = dataclasses.field(default_factory=list)
    hidden: torch.Tensor | None = None


@program
def dataclass_state():
    def f(state, x):
        state.step += 1
        state.hidden = x if state.hidden is None else state.hidden * 0.9 + x
        state.history.append(state.hidden.sum())
        return state

    return f, (State(), tensor(3))


@program
def keyword_only_interface():
    def attend(q, /, k, v=None, *, scale=None, mask=None, **rest):
        scale = scale or 1 / math.sqrt(q.shape[-1])
        scores = q @ k.transpose(-1, -2) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ (k if v is None else v), sorted(rest)

    def f(q, mask):
        a, _ = attend(q, k=q, scale=2.0)
        b, names = attend(q, q, mask=mask, unused=1, another=2)
        return a + b, names

    return f, (tensor(3, 4), torch.ones(3, 3).tril().bool())


@program
def tuple_subclass_result():
    class Output(NamedTuple):
        logits: torch.Tensor
        loss: torch.Tensor | None = None

        @property
        def predicted(self):
            return self.logits.argmax(-1)

    def f(x, y):
        out = Output(x * 2)
        out = out._replace(loss=nn.functional.cross_entropy(out.logits, y))
        return out, out.predicted, out._asdict()["loss"]

    return f, (tensor(2, 3), torch.tensor([0, 2]))


@program
def settings_object():
    def f(settings, x):
        settings.calls = getattr(settings, "calls", 0) + 1
        if hasattr(settings, "dtype"):
            x = x.to(settings.dtype)
        del settings.once
        return x, vars(settings).keys() - {"dtype"}

    return f, (types.SimpleNamespace(dtype=torch.float64, once=1), tensor(2))


# --- modules --------------------------------------------------------------------------------------


@program
def module_with_hooks():
    def make():
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        layer.seen = []
        layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

        def after(module, args, output):
            module.seen.append(output.mean())
            return output + 1

        layer.register_forward_hook(after)
        return nn.Sequential(layer, nn.ReLU())

    def f(model, x):
        return model(x), model[0].seen

    return f, (make(), tensor(2, 3))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.calls = 0
        self.cache = {}

    def forward(self, x):
        self.calls += 1
        self.count += 1
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        self.cache[f"call{self.calls}"] = x.sum()
        return x - self.mean


@program
def buffers_assigned_in_forward():
    def f(model, x):
        return model(model(x)), model.cache, model.calls

    return f, (Counter(), tensor(2, 3))


@program
def batch_norm_in_training():
    def f(model, x):
        return model(x)

    return f, (nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), tensor(4, 3))


@program
def module_list_and_dict():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 2)})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(3))])

        def forward(self, x, skip=()):
            for i, block in enumerate(self.blocks):
                if i in skip:
                    continue
                x = x + block(x) * self.scales[0]
            return {name: head(x) for name, head in self.heads.items()}

    return (lambda model, x: model(x, skip={1})), (Model(), tensor(2, 3))


@program
def mode_and_flags():
    def f(model, x):
        was = model.training
        y = model(x) if model.training else x
        return y, was, [p.requires_grad for p in model.parameters()], len(list(model.modules()))

    return f, (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)).eval(), tensor(2, 3))


@program
def shared_submodule():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids):
            return self.out(self.embed(ids))

    return (lambda model, ids: model(ids)), (Tied(), torch.tensor([[0, 4], [1, 1]]))


@program
def lazily_made_cache():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.cached = None
            self.length = 0

        def forward(self, x):
            if self.cached is None or x.shape[0] > self.length:
                self.length = x.shape[0]
                self.cached = torch.outer(torch.arange(self.length).float(), torch.ones(2)).cos()
            return x * self.cached[: x.shape[0]]

    return (lambda model, x: (model(x), model(x[:2]))), (Rotary(), tensor(4, 2))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program(make, capsys):
    check(make, capsys)
