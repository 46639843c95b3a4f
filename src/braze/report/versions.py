"""What is said when Braze is imported: newer versions than tested, names that are gone."""

from __future__ import annotations

from braze.compat.private_names import gone
from braze.compat.tested_versions import untested
from braze.errors import warn


def warn_of_versions() -> None:
    """One warning that says all of it; none where PyTorch and Python are as tested."""
    said = untested() + [str(row) for row in gone()]
    if said:
        warn(f"Braze: {'; '.join(said)}.")
