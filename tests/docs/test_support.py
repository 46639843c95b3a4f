"""The support matrix says what happens here."""

from __future__ import annotations

import json

import pytest

from tests.docs.support import FAULTS, RECORDS, devices, environment, measure


def test_no_record_holds_a_fault() -> None:
    for record in json.loads(RECORDS.read_text()).values():
        words = {word for kind in record.values() for word in kind.values()}
        assert words <= {"fused", "ATen", "breaks", "eager", "works", "no effect"}, words - FAULTS


@pytest.mark.parametrize("device", devices())
def test_the_record_of_this_environment_is_true(device: str) -> None:
    known = json.loads(RECORDS.read_text()).get(f"{environment()}, {device}")
    if known is None:
        pytest.skip("this environment has no record: python -m tests.docs.support")
    assert measure(device) == known
