"""DistributedDataParallel with a compiled module: when each bucket leaves, as a share of the
backward, in two processes."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import braze

WIDTH, LAYERS, BATCH, STEPS = 256, 12, 1024, 6
WAYS = ("eager", "wrapped", "whole")


def _model(way: str) -> tuple[nn.Module, DistributedDataParallel, Any]:
    """(the module, its wrapper, what is called)."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        for _ in range(LAYERS)
    ]
    module = nn.Sequential(*layers)
    inner = braze.compile(module) if way == "wrapped" else module
    wrapper = DistributedDataParallel(inner, bucket_cap_mb=1)
    return module, wrapper, braze.compile(wrapper) if way == "whole" else wrapper


def _shares(way: str, rank: int) -> tuple[list[list[float]], list[torch.Tensor]]:
    """Of each step, when the buckets left; and the last gradients."""
    module, wrapper, call = _model(way)
    times: list[float] = []

    def hook(state: Any, bucket: Any) -> Any:
        times.append(time.thread_time())  # of this thread alone: other processes take none of it
        return allreduce_hook(state, bucket)

    hook.__annotations__ = {}  # DDP compares them with classes, and here they are texts
    wrapper.register_comm_hook(None, hook)
    torch.manual_seed(rank)
    x = torch.randn(BATCH, WIDTH)
    shares = []
    for _ in range(STEPS):
        wrapper.zero_grad()
        loss = call(x).square().mean()
        times.clear()
        begin = time.thread_time()
        loss.backward()
        whole = time.thread_time() - begin
        shares.append([(at - begin) / whole for at in times])
    return shares[2:], [p.grad for p in module.parameters() if p.grad is not None]


def _run_rank(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    try:
        found = {way: _shares(way, rank) for way in WAYS}
        torch.save(found, Path(directory, f"found{rank}"))
    except Exception:
        Path(directory, f"failed{rank}").write_text(traceback.format_exc())
    dist.barrier()
    os._exit(0)


@pytest.mark.slow
def test_buckets_leave_when_eagers_do(tmp_path: Path) -> None:
    mp.spawn(_run_rank, (str(tmp_path),), 2)
    for rank in range(2):
        failed = tmp_path / f"failed{rank}"
        assert not failed.exists(), failed.read_text()
        found = torch.load(tmp_path / f"found{rank}")
        expected, gradients = found["eager"]
        for way in ("wrapped", "whole"):
            shares, found_gradients = found[way]
            torch.testing.assert_close(found_gradients, gradients, rtol=1e-3, atol=1e-6)
            earliest = [min(step[n] for step in shares) for n in range(len(expected[0]))]
            bounds = [max(step[n] for step in expected) + 0.05 for n in range(len(expected[0]))]
            assert all(map(float.__le__, earliest, bounds)), (way, earliest, bounds)
