"""The benchmark of several processes: what it says of overlap, and that systems train alike."""

from __future__ import annotations

import pytest
import torch.distributed
from benchmarks.distributed import Setting, overlap_share, run

needs_processes = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="PyTorch without torch.distributed"
)


@pytest.mark.parametrize(
    ("communication", "others", "share"),
    [
        ([], [(0.0, 1.0)], None),
        ([(0.0, 4.0)], [], 0.0),
        ([(0.0, 4.0)], [(1.0, 2.0), (3.0, 6.0)], 0.5),
        ([(0.0, 4.0)], [(0.0, 3.0), (1.0, 2.0)], 0.75),
        ([(0.0, 2.0), (1.0, 3.0)], [(0.0, 3.0)], 1.0),
    ],
)
def test_overlap_is_a_share_of_the_time_of_communication(
    communication: list[tuple[float, float]],
    others: list[tuple[float, float]],
    share: float | None,
) -> None:
    assert overlap_share(communication, others) == share


@needs_processes
@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_systems_train_alike(wrapper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    setting = Setting("cpu", 2, 1, 64, 1, 8, 1, "float32")
    found = run(setting, wrapper, ("eager", "braze"))
    assert len(found["braze"].seconds) == 1
    assert found["braze"].losses == pytest.approx(found["eager"].losses, rel=1e-5)
