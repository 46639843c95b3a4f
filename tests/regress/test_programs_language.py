"""Programs that use the language: containers, control flow, functools, writes in place."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn

from tests.regress.programs import check, tensor

PROGRAMS: list[Any] = []


def program(make):
    """Register a maker of (function, arguments)."""
    PROGRAMS.append(make)
    return make


# --- containers -----------------------------------------------------------------------------------


@program
def nested_containers_changed():
    def f(batch, x):
        batch["inputs"]["mask"] = x > 0
        batch["list"][1] = x
        batch["list"].extend([1, 2])
        batch["set"].add("new")
        del batch["drop"]
        batch["order"].move_to_end("a")
        return [*batch], batch["list"][-1]

    order = collections.OrderedDict(a=1, b=2)
    batch = {"inputs": {}, "list": [0, 0], "set": {"old"}, "drop": 1, "order": order}
    return f, (batch, tensor(3))


@program
def queue_of_frames():
    def f(queue, x):
        queue.append(x)
        queue.append(x + 1)
        return torch.stack(list(queue)), queue[0]

    return f, (collections.deque([torch.zeros(2)], maxlen=2), tensor(2))


@program
def counters_and_defaults():
    def f(x, words):
        counts = collections.Counter(words)
        groups = collections.defaultdict(list)
        for word in words:
            groups[len(word)].append(word)
        return x * counts["a"], dict(groups), counts.most_common(1), max(groups)

    return f, (tensor(2), ["a", "bb", "a", "cc"])


@program
def chained_maps_and_slices():
    def f(x, shape):
        a, *rest = shape
        table = {"a": a, **dict(enumerate(rest))}
        pairs = [(k, v) for k, v in table.items() if not isinstance(k, str)]
        return x.reshape(*shape[::-1]), pairs, x[..., 1:], x[None, :, 0], shape[-1:]

    return f, (tensor(2, 3), (2, 3))


@program
def same_list_twice():
    def f(a, b, x):
        a.append(x)
        b.append(x + 1)
        return len(a)

    items = []
    return f, (items, items, tensor(2))


# --- control --------------------------------------------------------------------------------------


@program
def early_returns():
    def pick(x, kind):
        if kind == "none":
            return None
        if x.ndim == 1:
            return x * 2
        for i in range(x.shape[0]):
            if i == 1:
                return x[i]
        return x

    return (lambda x: [pick(x, "none"), pick(x[0], ""), pick(x, ""), pick(x[:1], "")]), (
        tensor(2, 2),
    )


@program
def branch_on_data():
    def f(x):
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 1
        return torch.where(x > 0, y, -y)

    return f, (tensor(5),)


@program
def loop_until_converged():
    def f(x):
        steps = 0
        while (x.abs().max() > 0.1).item() and steps < 20:
            x = x * 0.5
            steps += 1
        return x, steps

    return f, (tensor(5),)


@program
def printing_in_a_loop():
    def f(x):
        for i in range(2):
            x = x + i
            print("step", i, x.shape)
        return x

    return f, (tensor(2),)


@program
def nonlocal_and_closures():
    def f(x):
        total, seen = 0, []

        def visit(y, depth=0):
            nonlocal total
            total += depth
            seen.append(depth)
            return visit(y * 2, depth + 1) if depth < 3 else y

        adders = [lambda t, n=n: t + n for n in range(2)]
        return visit(x), total, seen, [add(x) for add in adders]

    return f, (tensor(2),)


@program
def recursion_over_a_tree():
    def total(node):
        value, children = node
        return value + sum((total(child) for child in children), torch.zeros(()))

    x = torch.ones(())
    return total, ((x, [(x * 2, []), (x * 3, [(x * 4, [])])]),)


@program
def generators_in_stages():
    def batches(x, size):
        for start in range(0, len(x), size):
            yield x[start : start + size]

    def scaled(items, factor):
        count = 0
        for item in items:
            count += 1
            yield item * factor
        return count

    def f(x):
        def run():
            count = yield from scaled(batches(x, 2), 3)
            yield torch.tensor(float(count))

        return list(run()), next(batches(x, 1))

    return f, (tensor(5),)


@program
def context_managers():
    class Timer:
        def __init__(self):
            self.events = []

        def __enter__(self):
            self.events.append("in")
            return self

        def __exit__(self, *error):
            self.events.append("out" if error[0] is None else error[0].__name__)
            return error[0] is ValueError

    @contextlib.contextmanager
    def training(model, mode):
        before = model.training
        model.train(mode)
        try:
            yield model
        finally:
            model.train(before)

    def f(timer, model, x):
        with timer, training(model, False) as m:
            y = m(x)
        with timer:
            raise ValueError
        with contextlib.ExitStack() as stack:
            stack.enter_context(timer)
            stack.callback(timer.events.append, "callback")
        return y, timer.events

    return f, (Timer(), nn.Dropout(0.5), tensor(3))


@program
def exceptions_across_calls():
    class Invalid(Exception):
        def __init__(self, message, shape):
            super().__init__(message)
            self.shape = shape

    def check(x):
        if x.ndim != 2:
            raise Invalid("not a matrix", tuple(x.shape))
        return x

    def f(x, log):
        try:
            check(x[0])
        except Invalid as error:
            log.append((str(error), error.shape))
        finally:
            log.append("finally")
        try:
            try:
                check(x[0, 0])
            except Invalid as error:
                raise RuntimeError("wrapped") from error
        except RuntimeError as error:
            log.append(type(error.__cause__).__name__)
        return check(x) + 1

    return f, (tensor(2, 2), [])


@program
def exception_of_torch():
    def f(x, log):
        try:
            return x @ x
        except RuntimeError:
            log.append("shapes")
            return x @ x.T

    return f, (tensor(2, 3), [])


@program
def uncaught_exception():
    def f(x, log):
        log.append("before")
        y = x.add_(1)
        if x.shape[0] == 2:
            raise KeyError("late")
        return y

    return f, (tensor(2), [])


@program
def assertion_on_data():
    def f(x):
        assert x.ndim == 1
        assert (x >= x.min()).all(), "impossible"
        return x * 2

    return f, (tensor(3),)


# --- functools ------------------------------------------------------------------------------------


@program
def partials_and_caches():
    @functools.cache
    def table(n):
        return [i * i for i in range(n)]

    scale = functools.partial(torch.mul, other=3)

    @functools.wraps(scale)
    def wrapped(*args, **kwargs):
        return scale(*args, **kwargs) + table(3)[2]

    return (lambda x: (wrapped(x), functools.reduce(torch.add, [x, x, x]))), (tensor(2),)


@program
def cached_property_of_an_argument():
    class Data:
        def __init__(self, x):
            self.x = x

        @functools.cached_property
        def norm(self):
            return self.x.norm()

    return (lambda data: (data.norm, data.norm * 2, "norm" in vars(data))), (Data(tensor(3)),)


@program
def single_dispatch():
    @functools.singledispatch
    def size(value):
        return 0

    @size.register
    def _(value: list):
        return sum(size(v) for v in value)

    @size.register(torch.Tensor)
    def _(value):
        return value.numel()

    return (lambda x: (x + size([x, [x, 3]]), size("s"))), (tensor(2),)


@program
def decorators_with_state():
    def counted(function):
        @functools.wraps(function)
        def wrapper(*args):
            wrapper.calls += 1
            return function(*args)

        wrapper.calls = 0
        return wrapper

    @counted
    def double(x):
        return x * 2

    return (lambda x: (double(double(x)), double.calls)), (tensor(2),)


@program
def properties_and_slots():
    class Scaled:
        __slots__ = ("_scale", "x")

        def __init__(self, x):
            self.x, self._scale = x, 1.0

        @property
        def scale(self):
            return self._scale

        @scale.setter
        def scale(self, value):
            self._scale = float(value)

        def __matmul__(self, other):
            return self.x @ other * self.scale

        def __iter__(self):
            return iter(self.x)

        def __bool__(self):
            return self._scale > 0

    def f(scaled, x):
        scaled.scale = 3
        fresh = Scaled(x)
        return scaled @ x, [row for row in fresh], bool(scaled), fresh.scale  # noqa: C416

    return f, (Scaled(tensor(2, 2)), tensor(2, 2))


# --- tensors in place -----------------------------------------------------------------------------


@program
def argument_in_place():
    def f(x, y):
        x.add_(y).clamp_(min=0)
        x[0] = 5
        x[:, 1:] *= 2
        return x

    return f, (tensor(2, 3), tensor(3))


@program
def views_in_place():
    def f(x):
        top, bottom = x.chunk(2)
        top.add_(1)
        bottom.view(-1)[0] = -1
        diagonal = x.diagonal()
        diagonal.zero_()
        return top, diagonal, x.sum()

    return f, (tensor(4, 4),)


@program
def view_of_an_argument_returned():
    def f(x):
        y = x.view(-1)
        y += 1
        return y, x.t(), x[1]

    return f, (tensor(2, 3),)


@program
def alias_written_after_read():
    def f(x):
        before = x.sum()
        z = x.view(-1)
        x.mul_(2)
        return before, z + 1, x

    return f, (tensor(2, 3),)


@program
def out_arguments():
    def f(x, out):
        torch.add(x, 1, out=out)
        torch.mul(out, 2, out=out)
        return out

    return f, (tensor(3), torch.zeros(3))


@program
def index_put_and_scatter():
    def f(x, index):
        y = torch.zeros(3, 3)
        y[index, [0, 1]] = x[0, :2]
        y.scatter_(1, index[:, None], 7.0)
        y.index_add_(0, index, x)
        x[x > 0.2] = 0
        return y, x

    return f, (tensor(2, 3), torch.tensor([2, 0]))


@program
def ring_buffer():
    class Ring:
        def __init__(self):
            self.data, self.head = torch.zeros(3, 2), 0

        def push(self, x):
            self.data[self.head] = x
            self.head = (self.head + 1) % 3

    def f(ring, x):
        for row in x:
            ring.push(row)
        return ring.data.mean(0), ring.head

    return f, (Ring(), tensor(4, 2))


@program
def swapped_and_detached():
    def f(x, y):
        x, y = y, x
        z = x.detach()
        z.add_(1)
        return x - y, z is x, y.requires_grad

    return f, (tensor(2), tensor(2) + 1)


@program
def beam_search():
    def f(scores, width):
        beams = [((), 0.0)]
        for step in scores:
            grown = [
                (tokens + (i,), total + step[i].item())
                for tokens, total in beams
                for i in range(len(step))
            ]
            beams = sorted(grown, key=lambda beam: -beam[1])[:width]
        return beams

    return f, (tensor(2, 3).log_softmax(-1), 2)


@program
def padding_a_batch():
    def f(sequences, value):
        longest = max(len(s) for s in sequences)
        batch = torch.full((len(sequences), longest), value)
        for row, s in zip(batch, sequences):
            row[: len(s)] = s
        lengths = torch.tensor([len(s) for s in sequences])
        return batch, torch.arange(longest)[None] < lengths[:, None]

    return f, ([tensor(2), tensor(3)], -1.0)


@program
def random_with_a_seed():
    def f(x):
        torch.manual_seed(3)
        noise = torch.randn_like(x)
        return x + noise, torch.rand(2), torch.randperm(4)

    return f, (tensor(3),)


@program
def globals_and_locals():
    def f(x):
        scale = 2

        def inner():
            return x * scale

        return inner(), sorted(locals()), "tensor" in globals()

    return f, (tensor(2),)


@program
def copies():
    def f(state, x):
        shallow, deep = copy.copy(state), copy.deepcopy(state)
        shallow["x"].append(x)
        deep["x"].append(1)
        return shallow, deep, {**state}

    return f, ({"x": [tensor(2)]}, tensor(2))


@program
def walrus_matching_and_star():
    def kind(value):
        match value:
            case {"op": "scale", "by": by}:
                return lambda t: t * by
            case ["add", *terms]:
                return lambda t: t + sum(terms)
            case _:
                return lambda t: t

    def f(x):
        for op in ({"op": "scale", "by": 3}, ["add", 1, 2], None):
            if (function := kind(op)) is not None:
                x = function(x)
        return x

    return f, (tensor(2),)


@program
def default_mutable_argument():
    def remember(x, seen=[]):  # noqa: B006
        seen.append(x.sum())
        return len(seen)

    return (lambda x: (remember(x), remember(x), remember(x, []))), (tensor(2),)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program(make, capsys):
    check(make, capsys)
