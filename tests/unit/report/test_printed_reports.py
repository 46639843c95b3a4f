"""Reports say the same on a terminal, as text, and in a notebook."""

from __future__ import annotations

import html
import re

import pytest
import torch

import braze
from braze.report.printed_report import PrintedReport


def _reports() -> dict[type, PrintedReport]:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ x) < 0.5

    compiled = braze.compile(program)
    with braze.profile_recompiles() as profile:
        compiled(torch.rand(3, 3))
        compiled(torch.rand(4, 4))
    explanation = braze.explain(program)(torch.rand(3, 3))
    made = (profile, explanation, braze.status())
    return {type(report): report for report in made}


def _words(text: str) -> list[str]:
    return text.split()


def test_every_report_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    reports = _reports()
    assert set(PrintedReport.__subclasses__()) <= set(reports)
    for report in reports.values():
        text = str(report)
        assert "program" in text and repr(report) == text
        shown = re.sub(r"</?(pre|span)\b[^>]*>", "", report._repr_html_())
        assert "<" not in shown  # what the program calls itself is no markup
        assert _words(html.unescape(shown)) == _words(text)
        report.show()
        assert _words(text)[:2] == _words(capsys.readouterr().out)[:2]
