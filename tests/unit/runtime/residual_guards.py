"""What snapshots of guards leave to generated Python."""

from __future__ import annotations

from typing import Any

import pytest

from braze.ir.captured.guard import Guard
from braze.runtime.guards import snapshot as guards_snapshot


def note_residual_guards(monkeypatch: pytest.MonkeyPatch) -> list[list[Guard]]:
    """Of each snapshot that is made from now on."""
    found: list[list[Guard]] = []
    finish = guards_snapshot._SnapshotBuilder.finish

    def noted(builder: Any, residual: Any, compile_check: Any) -> Any:
        found.append([*residual])
        return finish(builder, residual, compile_check)

    monkeypatch.setattr(guards_snapshot._SnapshotBuilder, "finish", noted)
    return found
