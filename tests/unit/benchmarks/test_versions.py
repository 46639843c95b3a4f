"""Two checkouts beside each other: which is which, and what counts as slower."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks import versions
from benchmarks.models import MODELS, Size, build
from benchmarks.versions import HERE, Turns, compare, line, main, milliseconds

OTHER = Path("/another")


def test_they_take_turns() -> None:
    order: list[Path] = []

    def measure(checkout: Path, model: str, work: str) -> float:
        order.append(checkout)
        return float(len(order))

    found = compare(OTHER, "bert", "forward", 2, measure)
    assert order == [OTHER, HERE, OTHER, HERE]
    assert found == Turns(other=(1.0, 3.0), here=(2.0, 4.0))


@pytest.mark.parametrize(
    ("other", "here", "verdict"),
    [
        ((1.0, 1.1), (1.2, 1.3), "slower"),
        ((1.0, 1.3), (1.2, 1.3), ""),  # a turn of the other's was as slow
        ((1.0, 1.0), (1.02, 1.02), ""),
        ((1.2, 1.3), (1.0, 1.1), "quicker"),
    ],
)
def test_all_turns_have_to_agree(
    other: tuple[float, ...], here: tuple[float, ...], verdict: str
) -> None:
    found = Turns(other, here)
    assert found.verdict(0.03) == verdict
    assert line("bert", "forward", found, verdict).endswith(verdict)


def test_what_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: object
) -> None:
    def measure(checkout: Path, *rest: object) -> float:
        if checkout is HERE:
            raise subprocess.CalledProcessError(1, "python", stderr="...\nValueError: no")
        return 1.0

    (tmp_path / "src" / "braze").mkdir(parents=True)
    monkeypatch.setattr(versions, "_in_a_process", measure)
    assert main([str(tmp_path), "--models", "bert", "--work", "forward"]) == 1
    assert "failed: here: ValueError: no" in capsys.readouterr().out


def test_what_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([str(tmp_path)], [str(HERE), "--models", "bart"]):
        with pytest.raises(SystemExit):
            main(arguments)
    told = capsys.readouterr().err
    assert f"{tmp_path}: not there" in told and "bart: not there" in told


@pytest.mark.parametrize("work", ["forward", "backward", "step"])
def test_calls_are_measured(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        versions, "build", lambda spec, device: build(spec, device=device, size=Size.TINY)
    )
    assert 0 < milliseconds("bert", work, "cpu", 2) < 60_000
    assert "bert" in MODELS


def test_a_process_has_the_checkouts_source(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], str]] = []

    def run(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        environment = how["env"]
        assert isinstance(environment, dict)
        started.append((command, environment["PYTHONPATH"].split(":")[0]))
        return subprocess.CompletedProcess(command, 0, stdout="noise\n1.5\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert versions._in_a_process(OTHER, "bert", "step", "cpu", 3) == 1.5
    ((command, source),) = started
    assert source == "/another/src" and command[-1] == "3" and "--one" in command
