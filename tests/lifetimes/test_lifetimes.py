"""What is compiled goes with its last user, without the cycle collector; so do its kernels."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.runtime.guards.native_extension import LOADER
from tests.lifetimes.programs import MAKERS, Maker
from tests.recorded import recorded

# What PyTorch holds itself, in eager or with any backend, and what ends that: a checkpoint's frame
# holds its function, which holds the frame; a module holds the compiled form of its bound method;
# graphs of PyTorch's capture stay with the code of the class.
_HELD_BY_PYTORCH: dict[str, Callable[[], object]] = {
    "checkpointed": gc.collect,
    "with_module_compile": lambda: (torch.compiler.reset(), gc.collect()),
    "with_torch_compile": lambda: (torch.compiler.reset(), gc.collect()),
}
# Each program has kernels of its own.
_NUMBERS = (0.1875 + count / 1024 for count in itertools.count()).__next__
_OURS = [name for name in MAKERS if name not in _HELD_BY_PYTORCH]


def mapped_kernels() -> set[str]:
    """The objects of kernels that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "memfd:braze-" in line}


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """What is loaded once a process is there before: extensions, and what PyTorch imports with the
    first optimizer, whose frames it keeps."""
    LOADER.wait()
    for name in ("training", "whole_step"):
        MAKERS[name](_NUMBERS())
    gc.collect()


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("name", _OURS)
def test_goes_with_its_last_user(name: str) -> None:
    assert _left(MAKERS[name], lambda: None) == ([], set())


@pytest.mark.parametrize("name", _HELD_BY_PYTORCH)
def test_goes_when_pytorch_lets_go(name: str) -> None:
    assert _left(MAKERS[name], _HELD_BY_PYTORCH[name]) == ([], set())


def _left(maker: Maker, let_go: Callable[[], object]) -> tuple[list[str], set[str]]:
    """What a program leaves behind: by name, and objects of kernels."""
    before = mapped_kernels()
    with recorded():
        held, going = maker(_NUMBERS())
        assert mapped_kernels() - before, "nothing was compiled"
        assert all(reference() is not None for reference in going.values())
    del held
    let_go()
    alive = [name for name, reference in going.items() if reference() is not None]
    return alive, mapped_kernels() - before


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("name", _OURS)
def test_reset_unloads_kernels_of_what_is_held(name: str) -> None:
    before = mapped_kernels()
    made = MAKERS[name](_NUMBERS())
    assert mapped_kernels() - before
    braze.reset()
    assert mapped_kernels() - before == set()
    assert made.held is not None


def test_a_backward_keeps_its_kernels() -> None:
    """Behind a reset, and when nobody holds the compiled function any more."""
    x = torch.randn(5, requires_grad=True)
    before = mapped_kernels()
    result = braze.compile(lambda x: (x.sin() * 0.8125).exp())(x)
    braze.reset()
    assert mapped_kernels() - before
    result.sum().backward()
    wanted = (x.detach().sin() * 0.8125).exp() * 0.8125 * x.detach().cos()
    torch.testing.assert_close(x.grad, wanted)
    del result
    assert mapped_kernels() - before == set()


def test_kernels_stay_while_a_thread_runs_them() -> None:
    """They are dropped while another thread is in them, which has let go of the interpreter."""
    x = torch.randn(1 << 18)
    wrong: list[Any] = []

    def call(compiled: Any, wanted: torch.Tensor) -> None:
        for _ in range(40):
            if not torch.allclose(compiled(x), wanted):
                wrong.append(compiled)

    def function(x: Any) -> Any:
        return (x.sin() * 1.1875).exp().cos().tanh().sin().exp()

    before, wanted = mapped_kernels(), function(x)
    compiled = braze.compile(function)
    compiled(x)
    threads = [threading.Thread(target=call, args=(compiled, wanted)) for _ in range(2)]
    going = weakref.ref(compiled)
    del compiled
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        braze.reset()
    for thread in threads:
        thread.join()
    assert not wrong
    threads.clear()
    del thread
    assert going() is None and mapped_kernels() - before == set()


def test_one_object_serves_equal_programs() -> None:
    def make() -> Any:
        compiled = braze.compile(lambda x: x.sin() * 1.3125)
        compiled(torch.randn(6))
        return compiled

    before = mapped_kernels()
    first = make()
    once = mapped_kernels() - before
    second = make()
    assert mapped_kernels() - before == once and len(once) == 1
    del first
    torch.testing.assert_close(second(torch.ones(6)), torch.ones(6).sin() * 1.3125)
    del second
    assert mapped_kernels() - before == set()


def test_a_call_kept_without_its_module_is_refused() -> None:
    model = braze.compile_in_place(torch.nn.Linear(2, 2))
    call = model.__dict__["_compiled_call_impl"]
    call(torch.ones(1, 2))
    del model
    with pytest.raises(ReferenceError, match="keep the module"):
        call(torch.ones(1, 2))
