"""The documentation's site is built strictly, where the packages that build it are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import braze
from tests.architecture.tree import ROOT


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="`make docs` installs what builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert "WARNING" not in ran.stderr
    reference = (tmp_path / "reference" / "index.html").read_text()
    identifiers = {*re.findall(r'id="braze\.([\w.]+)"', reference)}
    assert {*braze.__all__} - identifiers <= {"config", "Options", "exc"}
    assert "<li><strong><code>fullgraph</code></strong>" in reference  # arguments are a list
