"""Writes to what existed before the call: kept back during capture, made by the replay."""

from __future__ import annotations

import collections
import functools

import torch

from braze.capture import Refused, capture_frame
from tests.unit.capture.replay import Replay, agree, captured_once, request_for, same

X = torch.arange(6.0).reshape(2, 3)
COUNTER = 0
TABLE = {"a": 1}


class Holder:
    limit = 3

    def __init__(self, **entries):
        self.__dict__.update(entries)

    def bump(self, x):
        self.count += 1
        self.last = x * self.count
        return self.last

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level = value * 2


class Slotted:
    __slots__ = ("a", "b")


def untouched_until_replay(function, *args, state):
    before = state()
    request = request_for(function, args)
    captured = capture_frame(request)
    assert state() == before
    Replay(captured, request).run()
    return state()


def test_list_argument():
    def f(x, items):
        items.append(x + 1)
        items[0] = 5
        del items[1]
        return len(items), items[-1], [i for i in items]  # noqa: C416

    agree(lambda: (f, (X, [1, 2, 3])))


def test_nested_containers():
    def f(x, data):
        data["list"].append(x)
        data["new"] = {"k": data["list"]}
        data.pop("gone")
        inner = data["dict"]
        inner.update(a=2)
        inner["b"] = inner["a"] + 1
        return sorted(data), data["dict"]["b"], "gone" in data, data.get("nothing", 4)

    agree(lambda: (f, (X, {"list": [1], "gone": 0, "dict": {"a": 1}})))


def test_sets_deques_and_ordered_dicts():
    def f(x, s, q, o):
        s.add(5)
        s.discard(1)
        q.append(x)
        q.popleft()
        o["z"] = x
        o.move_to_end("a")
        return sorted(s), len(q), list(o)

    agree(
        lambda: (
            f,
            (X, {1, 2}, collections.deque([1, 2, 3]), collections.OrderedDict(a=1, b=2)),
        )
    )


def test_untouched_entries_need_no_guard_on_all_keys():
    def f(x, d):
        d["new"] = x
        return d["a"] + x

    captured = agree(lambda: (f, (X, {"a": 1, "b": 2})))
    assert not any(guard.kind.name == "DICT_KEYS" for guard in captured.guards)


def test_attributes():
    def f(x, holder):
        y = holder.bump(x) + holder.bump(x)
        holder.level = 4
        del holder.gone
        holder.items.append(holder.level)
        holder.fresh = {"y": y}
        return y + holder.level, hasattr(holder, "gone"), holder.limit

    agree(lambda: (f, (X, Holder(count=0, gone=1, items=[]))))


def test_slots():
    def f(x, slotted):
        slotted.a = slotted.a + 1
        slotted.b = x
        return slotted.a

    def make():
        slotted = Slotted()
        slotted.a = 1
        return f, (X, slotted)

    function, args = make()
    want = function(*args)
    twin, twin_args = make()
    _, result = captured_once(twin, *twin_args)
    assert same(result, want)
    assert twin_args[1].a == 2 and same(twin_args[1].b, X)


def test_globals():
    def f(x):
        global COUNTER
        COUNTER += 1
        TABLE["b"] = COUNTER
        return x + COUNTER

    final = untouched_until_replay(f, X, state=lambda: (COUNTER, dict(TABLE)))
    assert final == (1, {"a": 1, "b": 1})


def test_cells():
    count = 0

    def f(x):
        nonlocal count
        count += 2
        return x * count

    assert untouched_until_replay(f, X, state=lambda: count) == 2


def test_objects_made_here_and_stored_outside():
    def f(x, items):
        node = Holder(value=x)
        node.me = node
        items.append(node)
        items.append(lambda: node.value + 1)
        return node

    items: list = []
    _, node = captured_once(f, X, items)
    assert items[0] is node and node.me is node
    assert same(items[1](), X + 1)


def test_input_tensors_are_mutated_once():
    def f(x, y):
        x.add_(1)
        y[0] = x.sum()
        return x * 2, x

    x1, y1 = X.clone(), torch.zeros(2)
    x2, y2 = X.clone(), torch.zeros(2)
    want = f(x1, y1)
    _, result = captured_once(f, x2, y2)
    assert same(result, want) and same(x1, x2) and same(y1, y2)
    assert result[1] is x2


def test_same_tensor_twice():
    def f(x, y):
        return x is y, x + y

    captured = agree(lambda: (f, (X,) * 2))
    assert any(guard.kind.name == "SAME_OBJECT" for guard in captured.guards)
    assert len(captured.inputs) == 1


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.steps = 0
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        self.steps += 1
        self.seen += 1
        self.seen = self.seen * 2
        self.cache = x
        return self.norm(self.linear(x)) + self.steps


def test_module_state_in_training():
    torch.manual_seed(0)
    first, second = Counting(), Counting()
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, 3)
    with torch.no_grad():
        want = first(x)
        _, result = captured_once(Counting.forward, second, x)
    assert same(result, want)
    assert second.steps == 1 and second.cache is x
    for name, value in first.state_dict().items():
        assert same(second.state_dict()[name], value), name


def test_module_containers_and_hooks():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])
            self.table = torch.nn.ModuleDict({"relu": torch.nn.ReLU()})
            self.scale = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3))])
            self.layers[0].register_forward_hook(lambda m, i, o: o + 1)
            self.layers[1].register_forward_pre_hook(lambda m, i: (i[0] * 2,))

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x) * (i + 1)
            for name, module in self.table.items():
                x = module(x) + len(name)
            return x * self.scale[0], len(self.layers), sum(p.numel() for p in self.parameters())

    model = Model()
    x = torch.randn(2, 3)
    with torch.no_grad():
        want = model(x)
        _, result = captured_once(Model.forward, model, x)
    assert same(result, want)


def test_ambient_state_is_left_as_it_was():
    def f(x):
        torch.set_grad_enabled(False)
        return x + 1

    captured, _ = captured_once(f, X)
    assert not torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    capture_frame(request_for(f, (X,)))
    assert torch.is_grad_enabled()
    assert any(type(effect).__name__ == "CapturedCall" for effect in captured.effects)


def test_autocast():
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.T

    agree(lambda: (f, (X,)))


def test_written_inputs_must_be_distinct():
    def f(x, y):
        x.add_(y)
        return x

    captured, _ = captured_once(f, X.clone(), X.clone())
    kinds = {guard.kind.name for guard in captured.guards}
    assert {"DISTINCT", "STORAGE_OVERLAP"} <= kinds
    base = X.clone()
    together = capture_frame(request_for(f, (base, base.view(2, 3))))
    assert [type(source).__name__ for source in together.inputs] == ["SharedMemorySource"]
    stopped = capture_frame(request_for(f, (base, base.detach())))
    reason = stopped if isinstance(stopped, Refused) else stopped.exit.reason
    assert reason.code == "unsupported-tensor"


def test_tensors_shared_without_a_write_are_fine():
    def f(x, y):
        return x + y

    base = X.clone()
    captured_once(f, base, base.view(2, 3))


@functools.lru_cache
def table_of(size):
    return torch.arange(float(size))


def test_cached_tensors_stay_real():
    def f(x):
        return x + table_of(3), table_of(3)

    _, result = captured_once(f, X)
    assert type(table_of(3)) is torch.Tensor
    assert result[1] is table_of(3)
    assert same(result, f(X))


def test_gradients_can_be_set():
    def f(model, x):
        model.zero_grad()
        model.bias.grad = x * 2
        return model.weight.grad is None, model.bias.grad + 1

    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        model.weight.grad = torch.ones(3, 3)
        return model

    first, second = make(), make()
    want = f(first, X[0])
    _, result = captured_once(f, second, X[0])
    assert same(result, want)
    assert second.weight.grad is None and same(second.bias.grad, first.bias.grad)
