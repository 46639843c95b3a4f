"""An optimizer's state in the snapshot of a step: it is changed, and both checks are asked."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from braze.interop.backends import Backend, Level
from braze.ir.captured.compile_request import FrameValues
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from braze.targets import make_dispatcher
from braze.trace import Journal
from tests.unit.runtime.residual_guards import note_residual_guards

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")


class Trained:
    """A step with an optimizer, its frame, and both checks of its entry."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.parameters = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
        self.optimizer = torch.optim.Adam(self.parameters, lr=0.1)
        self.run()
        dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
        function: Any = _step_of
        for _ in range(3):
            dispatcher.compiled(function)(self.optimizer)
        self.entry = dispatcher.caches()[0].entries[0]
        self.frame = FrameValues({"optimizer": self.optimizer}, (), function.__globals__)
        assert self.entry.check(self.frame) is not None
        self.memory = self.entry.memory

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def first(self) -> dict[str, torch.Tensor]:
        """The state of the first parameter."""
        return self.optimizer.state[self.parameters[0]]

    def run(self) -> None:
        _step_of(self.optimizer)

    def compare(self) -> bool:
        """Whether the guards hold, by the generated check; the snapshot says no more often only."""
        expected = self.memory.generated(self.frame)
        found = [check(self.frame) for check in self.memory.checks]
        assert expected is not None or found == [None] * len(found)
        for inputs in found:
            if inputs is not None and expected is not None:
                assert [*map(id, inputs)] == [*map(id, expected)]
        return expected is not None


def _step_of(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = parameter.detach() * 2
    optimizer.step()


def _same_memory(t: Trained) -> None:
    t.first["exp_avg_sq"].data = t.first["exp_avg"].data


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.data = value


def _swap(t: Trained) -> None:
    torch.utils.swap_tensors(t.first["exp_avg"], torch.ones(5))


def _other_state(t: Trained) -> None:
    t.state[t.parameters[0]] = {name: x.clone() for name, x in t.first.items()}


def _put_back(t: Trained, value: torch.Tensor) -> None:
    del t.first["exp_avg"]
    gc.collect()
    t.first["exp_avg"] = value


def _put_back_all(t: Trained, size: int) -> None:
    """Dicts and tensors that take the places of those that were freed."""
    for parameter in t.parameters:
        kept = {name: (x.shape, x.dtype) for name, x in t.state[parameter].items()}
        del t.state[parameter]
        made = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in kept.items()}
        if size:
            made["exp_avg"] = torch.zeros(size)
        t.state[parameter] = made


def _other_parameter(t: Trained) -> None:
    """The last key dies; another parameter is made, most often where it was."""
    parameter = t.parameters.pop()
    t.optimizer.param_groups[0]["params"].pop()
    state = t.state.pop(parameter)
    del parameter
    gc.collect()
    t.parameters.append(nn.Parameter(torch.ones(4, dtype=torch.float64)))
    t.optimizer.param_groups[0]["params"].append(t.parameters[-1])
    t.state[t.parameters[-1]] = state


def _load(t: Trained, change: Callable[[dict[str, Any]], Any]) -> None:
    saved = copy.deepcopy(t.optimizer.state_dict())
    change(saved)
    t.optimizer.load_state_dict(saved)


def _group(t: Trained, **values: Any) -> None:
    t.optimizer.param_groups[0].update(values)


def _replace(t: Trained, state: Any) -> None:
    t.optimizer.state = state


def _copied(t: Trained) -> dict[Any, Any]:
    return {key: dict(value) for key, value in t.state.items()}


def _reorder(t: Trained) -> None:
    t.state[t.parameters[0]] = t.state.pop(t.parameters[0])


def _exchange(t: Trained) -> None:
    a, b = t.parameters
    t.state[a], t.state[b] = t.state[b], t.state[a]


def _no_parameter_any_more(t: Trained) -> None:
    """The same number of keys, one of them no parameter of the optimizer."""
    t.state[nn.Parameter(torch.ones(4))] = t.state.pop(t.parameters[1])


Change = Callable[[Trained], Any]

NOTICED: dict[str, Change] = {
    "a moment of another size": lambda t: t.first.update(exp_avg=torch.zeros(7)),
    "a moment of another rank": lambda t: t.first.update(exp_avg=torch.zeros(3, 2, 1)),
    "a moment that is no tensor": lambda t: t.first.update(exp_avg=0.0),
    "a moment that is a parameter": lambda t: t.first.update(
        exp_avg=nn.Parameter(torch.zeros(3, 2))
    ),
    "a moment on another device": lambda t: t.first.update(
        exp_avg=torch.zeros(3, 2, device="meta")
    ),
    "data of another dtype": lambda t: _set_data(t.first["exp_avg"], torch.ones(3, 2).double()),
    "data of another shape": lambda t: _set_data(t.first["exp_avg"], torch.ones(2, 3)),
    "data of other strides": lambda t: _set_data(t.first["exp_avg"], torch.ones(2, 3).t()),
    "a parameter's data of another shape": lambda t: _set_data(t.parameters[0], torch.ones(6)),
    "a moment resized": lambda t: t.first["exp_avg"].resize_(2, 2),
    "a moment transposed": lambda t: t.first["exp_avg"].t_(),
    "a moment set": lambda t: t.first["exp_avg"].set_(torch.ones(7)),
    "a moment swapped": _swap,
    "a moment that requires grad": lambda t: t.first["exp_avg"].requires_grad_(),
    "a parameter that requires none": lambda t: t.parameters[0].requires_grad_(False),
    "one moment for two": lambda t: t.first.update(exp_avg_sq=t.first["exp_avg"]),
    "one memory for two": _same_memory,
    "a name put back, of another size": lambda t: _put_back(t, torch.zeros(7)),
    "all put back, of another size": lambda t: _put_back_all(t, 7),
    "a parameter without": lambda t: t.state.pop(t.parameters[1]),
    "a parameter more": lambda t: t.state.update({nn.Parameter(torch.ones(2)): {}}),
    "a parameter's place taken": _other_parameter,
    "a key that is none": lambda t: t.state.update(other={}),
    "a key that is no parameter": _no_parameter_any_more,
    "a parameter's state of another's": _exchange,
    "a parameter's state is a list": lambda t: t.state.update({t.parameters[0]: []}),
    "a parameter's state is empty": lambda t: t.state.update({t.parameters[0]: {}}),
    "nothing": lambda t: t.state.clear(),
    "nothing of one": lambda t: t.first.clear(),
    "without a name": lambda t: t.first.pop("exp_avg"),
    "another, empty state": lambda t: _replace(t, defaultdict(dict)),
    "a plain dict": lambda t: _replace(t, _copied(t)),
    "no state": lambda t: _replace(t, None),
    "the state deleted": lambda t: delattr(t.optimizer, "state"),
    "a number of a group": lambda t: _group(t, eps=0.5),
    "a flag of a group": lambda t: _group(t, amsgrad=True),
    "a group's parameters": lambda t: _group(t, params=t.parameters[:1]),
    "a group more": lambda t: t.optimizer.add_param_group(
        {"params": [nn.Parameter(torch.ones(2))]}
    ),
    "no group": lambda t: t.optimizer.param_groups.clear(),
    "loaded, with another number": lambda t: _load(
        t, lambda saved: saved["param_groups"][0].update(eps=0.5)
    ),
    "loaded, with another size": lambda t: _load(
        t, lambda saved: saved["state"][0].update(exp_avg=torch.zeros(7))
    ),
    "loaded, without": lambda t: _load(t, lambda saved: saved["state"].pop(1)),
}
# Here the guards may hold: then the inputs are the tensors that are there now.
HARMLESS: dict[str, Change] = {
    "other dicts of the same": _other_state,
    "a moment alike": lambda t: t.first.update(exp_avg=torch.zeros(3, 2)),
    "data alike": lambda t: _set_data(t.first["exp_avg"], torch.zeros(3, 2)),
    "a name put back": lambda t: _put_back(t, torch.zeros(3, 2)),
    "all put back": lambda t: _put_back_all(t, 0),
    "another order": _reorder,
    "a name more": lambda t: t.first.update(other=torch.zeros(1)),
    "another state of the same": lambda t: _replace(t, defaultdict(dict, _copied(t))),
    "the same state again": lambda t: _replace(t, t.state),
    "loaded": lambda t: _load(t, lambda saved: None),
    "written to": lambda t: t.first["exp_avg"].zero_(),
}


def test_the_state_of_an_optimizer_is_read_by_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left to generated Python, but that tensors are no two the same, and which
    factory the dict has, which only C's field says."""
    made = note_residual_guards(monkeypatch)
    trained = Trained()
    assert trained.compare() and len(trained.memory.checks) == 1
    left = [guard for guards in made for guard in guards]
    of_state = {str(guard.source) for guard in left if ".state" in str(guard.source)}
    assert left and of_state <= {"L['optimizer'].state.default_factory"}
    state = trained.first
    assert any(x is state["exp_avg"] for x in trained.memory.checks[0](trained.frame))


@pytest.mark.parametrize("change", NOTICED)
def test_changes_of_an_optimizers_state_are_noticed(change: str) -> None:
    trained = Trained()
    assert trained.compare()
    NOTICED[change](trained)
    assert not trained.compare()
    assert trained.entry.check(trained.frame) is None


@pytest.mark.parametrize("change", HARMLESS)
def test_what_the_step_may_go_on_with_is_read_anew(change: str) -> None:
    trained = Trained()
    assert trained.compare()
    HARMLESS[change](trained)
    for _ in range(3):
        expected, found = (
            trained.memory.generated(trained.frame),
            trained.entry.check(trained.frame),
        )
        assert (expected is None) == (found is None)
        if found is not None:
            assert [*map(id, found)] == [*map(id, expected)]
        trained.compare()


def test_the_state_of_an_optimizer_that_is_gone_is_not_kept() -> None:
    """Parameters are, by the sources of guards whose keys they are."""
    trained = Trained()
    gone = [weakref.ref(trained.optimizer), weakref.ref(trained.first["exp_avg"])]
    memory, frame = trained.memory, trained.frame
    assert memory.checks[0](frame) is not None
    frame.locals["optimizer"] = None
    del trained
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert memory.checks[0](frame) is None


def test_an_optimizers_place_may_be_taken_by_another() -> None:
    trained = Trained()
    for _ in range(20):
        trained.frame.locals["optimizer"] = None
        del trained.optimizer
        gc.collect()
        trained.optimizer = trained.frame.locals["optimizer"] = torch.optim.Adam(
            trained.parameters, lr=0.1
        )
        assert not trained.compare()
        trained.run()
        trained.compare()
        assert trained.entry.check(trained.frame) is not None
        trained.compare()


def test_checks_of_two_threads_notice_what_a_third_changes() -> None:
    trained = Trained()
    wrong: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            for check in trained.memory.checks:
                inputs = check(trained.frame)
                if inputs is not None and any(x.shape == (7,) for x in inputs):
                    wrong.append(inputs)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for size in (7, 0) * 50:
        _put_back_all(trained, size)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    trained.compare()
