"""What the device of this machine reaches, measured: plausible, cheap, and without a trace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import pytest
import torch

from braze.devices import device_of_type
from braze.ir.device_model import model_of, model_of_device
from braze.ir.device_rates import Rate
from braze.options import config

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


def test_each_rate_is_measured_and_kept(tmp_path: Path) -> None:
    assert device_of_type("cuda") is not None
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
