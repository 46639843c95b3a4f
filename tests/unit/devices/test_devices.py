"""What differs between devices, and when it is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from braze.devices import cpu, cuda, device_of_type
from braze.options import Options
from braze.schedule.target import CPU, CUDA

PROGRAM = """
import sys
from torch.utils._python_dispatch import TorchDispatchMode
class NoOperators(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        raise AssertionError(f"importing runs {operator}")
from braze.devices import device_of_type
def loaded():
    ours = ("braze.codegen.triton", "braze.runtime.link.link_cuda", "braze.runtime.cuda.driver_api")
    return any(name.startswith(ours) for name in sys.modules)
assert device_of_type("cpu") is not None and not loaded()
with NoOperators():
    assert device_of_type("cuda") is not None and loaded()
assert "triton" not in sys.modules
"""


def test_each_type_has_its_row() -> None:
    assert device_of_type("cpu") is cpu.DEVICE
    assert device_of_type("cuda") is cuda.DEVICE
    assert device_of_type("meta") is None


def test_what_serves_a_gpu_is_loaded_when_one_is_asked_for() -> None:
    """In the middle of a compile: under modes of the user's it runs no operator."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", None])
def test_only_tuning_chooses_products(mode: str | None) -> None:
    assert cuda.DEVICE.choose(Options(mode=mode), CUDA) is None


def test_eager_numerics_keep_the_librarys() -> None:
    assert cuda.DEVICE.choose(Options(mode="max-autotune", numerics="eager"), CUDA) is None
    assert cuda.DEVICE.choose(Options(mode="max-autotune"), CUDA) is not None


def test_a_cpus_products_are_chosen_in_any_mode_but_eager_numerics() -> None:
    assert cpu.DEVICE.choose(Options(), CPU) is not None
    assert cpu.DEVICE.choose(Options(mode="max-autotune", numerics="eager"), CPU) is None
