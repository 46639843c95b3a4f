"""Records of one stretch of a test's compiles, apart from the journal that the process shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from braze import api, targets
from braze.trace import Journal


@contextmanager
def recorded() -> Iterator[Journal]:
    """What is given to `braze.compile` inside writes its records here, whenever it is compiled.

    Nothing else does: a compile that another test began, and the garbage collector ends, goes on
    writing where it did.
    """
    journal = Journal()
    with (
        mock.patch.object(api, "JOURNAL", journal),
        mock.patch.object(targets, "JOURNAL", journal),
    ):
        yield journal
