"""Soundness of guards: after a capture one reachable thing changes, and the guards must notice
(or the captured frame must still be right); what is not looked at may change freely."""

from __future__ import annotations

import functools
import types

import pytest
import torch

from braze.capture import CapturedFrame, capture_frame
from braze.ir.captured.compile_request import FrameValues
from braze.runtime.guards.compile import compile_guards
from tests.unit.capture.replay import Replay, request_for, same

X = torch.arange(6.0).reshape(2, 3)
FACTOR = 2
TABLE = {"a": 1, "b": [1, 2]}


def helper(x, scale=3):
    return x * scale


class Thing:
    level = 1

    def __init__(self):
        self.value = 2
        self.items = [1, 2]
        self.child = types.SimpleNamespace(depth=3)
        self.unused = 0

    def method(self, x):
        return x + self.value

    @property
    def computed(self):
        return self.value * 10


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.blocks = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
        self.flag = True

    def forward(self, x):
        x = self.norm(self.linear(x))
        for block in self.blocks:
            x = block(x)
        return x if self.flag else -x


def program(x, thing, model, options):
    x = helper(x) * FACTOR + TABLE["a"] + len(TABLE["b"])
    x = thing.method(x) + thing.level + thing.items[0] + thing.child.depth + thing.computed
    if hasattr(thing, "extra"):
        x = x + 1
    if options.get("twice"):
        x = x * 2
    return model(x)


def fresh():
    torch.manual_seed(0)
    return program, (X.clone(), Thing(), Model().eval(), {"other": 1})


def hook(module, inputs, output):
    return output + 1


CHANGES = {
    "attribute": lambda x, t, m, o: setattr(t, "value", 5),
    "attribute type": lambda x, t, m, o: setattr(t, "value", 2.0),
    "list item": lambda x, t, m, o: t.items.__setitem__(0, 7),
    "nested attribute": lambda x, t, m, o: setattr(t.child, "depth", 9),
    "new attribute": lambda x, t, m, o: setattr(t, "extra", 1),
    "instance shadows class attribute": lambda x, t, m, o: setattr(t, "level", 9),
    "instance shadows method": lambda x, t, m, o: setattr(t, "method", lambda x: x),
    "option": lambda x, t, m, o: o.update(twice=True),
    "class": lambda x, t, m, o: setattr(t, "__class__", type("Other", (Thing,), {"level": 4})),
    "weight requires grad": lambda x, t, m, o: m.linear.weight.requires_grad_(False),
    "weight dtype": lambda x, t, m, o: setattr(m.linear.bias, "data", m.linear.bias.data.double()),
    "training": lambda x, t, m, o: m.train(),
    "flag": lambda x, t, m, o: setattr(m, "flag", False),
    "submodule": lambda x, t, m, o: setattr(m, "linear", torch.nn.Linear(3, 3, bias=False)),
    "block": lambda x, t, m, o: m.blocks.__setitem__(0, torch.nn.Sigmoid()),
    "more blocks": lambda x, t, m, o: m.blocks.append(torch.nn.ReLU()),
    "hook": lambda x, t, m, o: m.linear.register_forward_hook(hook),
    "forward patched": lambda x, t, m, o: setattr(m.linear, "forward", lambda x: x),
    "shape": lambda x, t, m, o: x.resize_(4, 3).fill_(1),
}


def guards_hold(check, request):
    values = FrameValues(dict(request.local_values), (), request.globals)
    return check(values)


@pytest.fixture
def captured():
    function, args = fresh()
    request = request_for(function, args)
    with torch.no_grad():
        frame = capture_frame(request)
        assert isinstance(frame, CapturedFrame), frame
        check = compile_guards(frame.guards)
        assert guards_hold(check, request)
        yield frame, check, request, args


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_noticed(captured, name):
    _, check, request, args = captured
    CHANGES[name](*args)
    assert not guards_hold(check, request)


@pytest.mark.parametrize(
    "name", ["unused attribute", "unused option", "weight values", "new weight", "list tail"]
)
def test_irrelevant_change_is_ignored_and_right(captured, name):
    frame, check, request, (x, thing, model, options) = captured
    if name == "unused attribute":
        thing.unused = "something"
    elif name == "unused option":
        options["third"] = 3
    elif name == "weight values":
        model.linear.weight.mul_(2)
    elif name == "new weight":
        model.linear.weight = torch.nn.Parameter(torch.ones(3, 3))
    elif name == "list tail":
        thing.items.append(5)
    assert guards_hold(check, request)
    assert same(Replay(frame, request).run(), program(x, thing, model, options))


def patched(owner, name, value):
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


OUTSIDE = {
    "global value": lambda p: p.setitem(globals(), "FACTOR", 5),
    "global function": lambda p: p.setitem(globals(), "helper", lambda x: x),
    "global dict entry": lambda p: p.setitem(TABLE, "a", 6),
    "global list": lambda p: p.setitem(TABLE, "b", [1, 2, 3]),
    "default": lambda p: p.setattr(helper, "__defaults__", (4,)),
    "code": lambda p: p.setattr(helper, "__code__", (lambda x, scale=3: x).__code__),
    "class attribute": lambda p: p.setattr(Thing, "level", 8),
    "method": lambda p: p.setattr(Thing, "method", lambda self, x: x),
    "property": lambda p: p.setattr(Thing, "computed", property(lambda self: 1)),
    "new class attribute": lambda p: p.setattr(Thing, "extra", 1, raising=False),
    "module forward": lambda p: p.setattr(torch.nn.ReLU, "forward", lambda self, x: x),
    "torch function": lambda p: p.setattr(
        torch.nn.functional, "linear", functools.partial(torch.nn.functional.linear)
    ),
    "builtin shadowed": lambda p: p.setitem(globals(), "len", lambda x: 7),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_change_outside_is_noticed(captured, name, monkeypatch):
    _, check, request, _ = captured
    OUTSIDE[name](monkeypatch)
    assert not guards_hold(check, request)


def test_grad_mode_is_guarded(captured):
    _, check, request, _ = captured
    with torch.enable_grad():
        assert not guards_hold(check, request)


def test_global_hook_is_noticed(captured):
    _, check, request, _ = captured
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    assert not guards_hold(check, request)
    handle.remove()
    assert guards_hold(check, request)


def test_closure_contents_are_guarded():
    factor = 2

    def f(x):
        return x * factor

    request = request_for(f, (X,))
    frame = capture_frame(request)
    check = compile_guards(frame.guards)
    values = FrameValues({"x": X, "factor": f.__closure__[0]}, (), request.globals)
    assert check(values)
    factor = 3
    assert not check(values)


def test_few_guards_a_module():
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(20)]).eval()
    request = request_for(type(model).forward, (model, torch.ones(2, 4)))
    frame = capture_frame(request)
    assert len(frame.guards) / 20 < 6


def test_written_lists_are_guarded_to_be_two():
    def f(x, a, b):
        a.append(1)
        return x + len(b)

    request = request_for(f, (X, [1], [1]))
    check = compile_guards(capture_frame(request).guards)
    assert guards_hold(check, request_for(f, (X, [1], [1])))
    both = [1]
    assert not guards_hold(check, request_for(f, (X, both, both)))
