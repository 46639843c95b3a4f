"""Compiled code of two processes that wait for each other: what is sent is what eager sends."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
import torch.multiprocessing as mp

import braze

SIZE = 1 << 16


def send_and_receive(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if dist.get_rank() == 0:
        dist.send(y, 1)
    else:
        dist.recv(y, 0)
    return y + 1


def begun_and_awaited(x: torch.Tensor) -> torch.Tensor:
    y, peer = torch.zeros_like(x), 1 - dist.get_rank()
    sent, received = dist.isend(x * 2, peer), dist.irecv(y, peer)
    sent.wait()
    received.wait()
    return y + 1


def batched(x: torch.Tensor) -> torch.Tensor:
    y, peer = torch.zeros_like(x), 1 - dist.get_rank()
    wanted = [dist.P2POp(dist.isend, x * 2, peer), dist.P2POp(dist.irecv, y, peer)]
    for work in dist.batch_isend_irecv(wanted):
        work.wait()
    return y + 1


def reduced_in_place(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x + 1


def coalesced(x: torch.Tensor) -> torch.Tensor:
    a, b = x * 2, x + 1
    with dist._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    return a + b


def operand_dies_early(x: torch.Tensor) -> torch.Tensor:
    """What is gathered has no reader behind the beginning, and is sent when the other one comes."""
    operators = torch.ops._c10d_functional
    begun = operators.all_gather_into_tensor(x.sin(), 2, dist.group.WORLD.group_name)
    other = torch.cumsum(x.cos(), 0).sort().values.flip(0) + 1
    return torch.cat((operators.wait_tensor(begun) * 1, other))


PROGRAMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    send_and_receive,
    begun_and_awaited,
    batched,
    reduced_in_place,
    coalesced,
    operand_dies_early,
)


def _compare(program: Callable[[torch.Tensor], torch.Tensor], rank: int) -> None:
    compiled = braze.compile(program)
    results: list[Any] = []
    for function in (program, compiled, compiled, compiled):
        x = torch.full((SIZE,), rank + 1.0)
        dist.barrier()
        if rank == 1:
            time.sleep(0.1)  # the other one's operand is on its way as long
        results.append((function(x), x))
    for result, argument in results[1:]:
        torch.testing.assert_close(result, results[0][0])
        torch.testing.assert_close(argument, results[0][1])


def _run_rank(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for program in PROGRAMS:
        try:
            _compare(program, rank)
            said = "right"
        except Exception:
            said = traceback.format_exc()
        Path(directory, f"{program.__name__}{rank}").write_text(said)
    dist.barrier()
    os._exit(0)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    mp.spawn(_run_rank, (str(tmp_path),), 2)
    for program in PROGRAMS:
        for rank in range(2):
            assert (tmp_path / f"{program.__name__}{rank}").read_text() == "right"
