"""What tests of attention need."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from braze.rewrite.fuse_attention import Worth, fuse_attention
from tests.unit.rewrite.attention_checks import HALVES


@pytest.fixture
def attention_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little of it."""
    always = Worth(frozenset({torch.float32, *HALVES}), count=1, trained=1)
    worth = sys.modules[fuse_attention.__module__].WORTH
    monkeypatch.setitem(worth, "cpu", always)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What the log says of attention as a call; that it is one kernel of the schedule is none."""
    with caplog.at_level(logging.INFO, "braze.fusion"):
        yield lambda: [
            record.getMessage().partition(": ")[2]
            for record in caplog.records
            if record.getMessage().startswith("attention")
            and "one kernel" not in record.getMessage()
        ]
