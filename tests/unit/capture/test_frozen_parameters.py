"""`requires_grad_(False)` of parameters, and True again: part of the step, before they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import braze
from tests.unit.capture.test_backward import assert_same, breaks_of

Freeze = Callable[[nn.Sequential, bool], None]


def each_parameter(model: nn.Sequential, wanted: bool) -> None:
    for parameter in model[0].parameters():
        parameter.requires_grad_(wanted)


def by_attribute(model: nn.Sequential, wanted: bool) -> None:
    model[0].weight.requires_grad = wanted


def the_module(model: nn.Sequential, wanted: bool) -> None:
    model[0].requires_grad_(wanted)


def there_and_back(model: nn.Sequential, wanted: bool) -> None:
    model[0].requires_grad_(not wanted).requires_grad_(wanted)


FREEZES = [each_parameter, by_attribute, the_module, there_and_back]


class Training:
    def __init__(self, freeze: Freeze) -> None:
        torch.manual_seed(0)
        self.freeze = freeze
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: Tensor, y: Tensor, wanted: bool | None) -> Tensor:
        self.optimizer.zero_grad()
        if wanted is not None:
            self.freeze(self.model, wanted)
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, x: Tensor, y: Tensor, wanted: bool | None) -> Tensor:
        """The backward is the caller's."""
        self.optimizer.zero_grad()
        if wanted is not None:
            self.freeze(self.model, wanted)
        return F.cross_entropy(self.model(x), y)

    def frozen_after_use(self, x: Tensor, y: Tensor, wanted: bool | None) -> Tensor:
        """What comes behind the freeze gives the first layer no gradient."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        if wanted is not None:
            self.freeze(self.model, wanted)
        F.cross_entropy(self.model(-x), y).backward()
        return loss.detach()


ORDER = (None, False, False, None, True, None, True, False)


def compare(name: str, freeze: Freeze, backend: str) -> list[str]:
    eager, ours = Training(freeze), Training(freeze)
    compiled = braze.compile(getattr(ours, name), backend=backend)
    for wanted in ORDER:
        x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
        losses = [getattr(eager, name)(x, y, wanted), compiled(x, y, wanted)]
        torch.testing.assert_close(losses[1], losses[0])
        assert losses[0].requires_grad == losses[1].requires_grad
        for loss in losses if name == "run" else ():
            loss.backward()
        for mine, theirs in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.requires_grad == theirs.requires_grad
            assert_same(mine.grad, theirs.grad)
    return breaks_of(compiled)


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("freeze", FREEZES)
def test_a_step_that_freezes(freeze: Freeze, backend: str) -> None:
    found = compare("step", freeze, backend)
    assert backend == "eager" or found == []


@pytest.mark.parametrize("freeze", FREEZES)
def test_a_backward_of_the_callers(freeze: Freeze) -> None:
    assert compare("run", freeze, "aot_eager") == []


@pytest.mark.parametrize("freeze", [each_parameter, by_attribute, the_module])
def test_what_was_used_before_breaks(freeze: Freeze) -> None:
    assert compare("frozen_after_use", freeze, "aot_eager")


def test_a_fault_leaves_them_as_they_were() -> None:
    def program(x: Tensor, weight: Tensor, places: Tensor) -> Any:
        weight.requires_grad_(False)
        return (x * weight)[places]

    compiled = braze.compile(program, backend="aot_eager")
    x = torch.arange(3.0)
    for last in (2, 7):
        weight = torch.ones(3, requires_grad=True)
        places = torch.tensor([0, last])
        if last < 3:
            assert torch.equal(compiled(x, weight, places), x[places])
        else:
            with pytest.raises(IndexError):
                compiled(x, weight, places)
        assert not weight.requires_grad


def test_a_watched_leaf_is_still_asked_for() -> None:
    """Off and on again: its gradients were watched all along."""
    calls: list[int] = []

    def program(weight: Tensor) -> None:
        weight.requires_grad_(False).requires_grad_(True)
        (weight * 2).sum().backward()

    compiled = braze.compile(program, backend="aot_eager")
    compiled(torch.ones(3, requires_grad=True))
    weight = torch.ones(3, requires_grad=True)
    node = weight.view_as(weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *gradients: calls.append(1))
    compiled(weight)
    assert calls == [1]
