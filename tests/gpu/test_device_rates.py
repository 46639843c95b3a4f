"""What the device of this machine reaches, measured: plausible, cheap, and without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
import torch

from braze.devices import device_of_type
from braze.ir.device_model import model_of, model_of_device
from braze.ir.device_rates import Rate
from braze.options import config
from braze.runtime.cuda.cublas_workspace import Scratch, make_workspace

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


def test_each_rate_is_measured_and_kept(tmp_path: Path) -> None:
    assert device_of_type("cuda") is not None
    make_workspace(Scratch.PLAIN, DEVICE)  # as the link of the first program with a product does
    torch.ones(8, 8, device=DEVICE, dtype=torch.float16).mm(torch.ones(8, 8, device=DEVICE).half())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    peak, state = torch.cuda.max_memory_allocated(), torch.cuda.get_rng_state(0)
    model_of_device.cache_clear()
    model, plain = model_of_device(DEVICE), model_of(torch.cuda.get_device_properties(0))
    assert model.measured is not None
    with config.patch(cache_dir=str(tmp_path / "cache")):
        began = time.perf_counter()
        rates = {rate: model.measured.get(rate) for rate in get_args(Rate)}
        spent = time.perf_counter() - began
    assert all(rates.values()), rates
    assert spent < 5, spent  # 0.01 on a quiet H100 whose libraries are loaded
    assert len(list((tmp_path / "cache/rates").glob("*.braze"))) == len(rates)
    # Other processes may have the device meanwhile: what is not believed is the table's.
    for name in ("memory", "launch"):
        assert 0.4 <= getattr(model, name) / getattr(plain, name) <= 2.5, name
    assert 0.4 <= model.products(2) / plain.products(2) <= 2.5
    assert torch.cuda.max_memory_allocated() == peak
    assert torch.equal(torch.cuda.get_rng_state(0), state)


PROGRAM = """
import time, torch
import braze
from braze.ir.device_model import model_of_device
from braze.runtime.cuda.cublas_workspace import PRODUCTS_LOADED
torch.ones(1, device="cuda")
device = torch.device("cuda", 0)
model = model_of_device(device)
began = time.perf_counter()
model.memory, model.launch, model.products(2)
assert device not in PRODUCTS_LOADED
print(time.perf_counter() - began)
"""


def test_a_first_compile_does_not_wait_for_rates(tmp_path: Path) -> None:
    """In a process that has used no product yet, with an empty cache."""
    environment = os.environ | {"BRAZE_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 0.05
