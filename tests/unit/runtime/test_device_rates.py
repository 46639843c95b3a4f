"""Rates of a GPU: measured when first read, kept, corrected for; on devices that answer as told."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from braze.cache import cache_of
from braze.ir.device_model import H200, KNOWN, LAUNCH, MEASURED_OF_AN_H200
from braze.ir.device_rates import NOT_YET, Measured, MeasuredRates, Measures, Rate
from braze.options import config
from braze.runtime.cuda import device_rates
from braze.runtime.cuda.cublas_workspace import LoadedLibraries
from braze.runtime.cuda.device_rates import CudaProbe, measured_rate
from braze.runtime.cuda.driver_api import CudaDriver, CudaError

RATES: tuple[Rate, ...] = ("copy", "launch", "products")
FACTS = ("a card", "a driver")


class Probe:
    """A device with these rates; asked: how often for each."""

    def __init__(self, **rates: float | Exception) -> None:
        self.rates, self.asked = rates, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        def measure() -> float:
            self.asked[name] += 1
            found = self.rates[name]
            if isinstance(found, Exception):
                raise found
            return found

        return measure


def _measured(probe: Any, rate: Rate, facts: tuple[str, ...] = FACTS) -> Measured:
    return measured_rate(probe, rate, facts, config.snapshot())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Any:
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield


def test_measured_once_for_a_card_and_driver() -> None:
    probe = Probe(copy=2.94e12)
    assert [_measured(probe, "copy") for _ in range(3)] == [2.9e12] * 3
    assert probe.asked == {"copy": 1}
    assert _measured(probe, "copy", ("a card", "another driver")) == 2.9e12
    assert _measured(probe, "copy", ("another card", "a driver")) == 2.9e12
    assert probe.asked == {"copy": 3}


def test_rates_lie_in_the_checked_cache(tmp_path: Path) -> None:
    _measured(Probe(launch=2.5e-6), "launch")
    (entry,) = (tmp_path / "cache/rates").glob("*.braze")
    assert entry.read_bytes().startswith(b"braze-cache 1 ")
    assert entry.stat().st_mode & 0o777 == 0o600


def test_a_damaged_entry_is_measured_anew(tmp_path: Path) -> None:
    probe = Probe(copy=3e12)
    _measured(probe, "copy")
    (entry,) = (tmp_path / "cache/rates").glob("*.braze")
    entry.write_bytes(entry.read_bytes().replace(b"3", b"9"))
    assert _measured(probe, "copy") == 3e12
    assert probe.asked == {"copy": 2}


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b'{"rate": "1"}', b'{"rate": NaN}', b"\xff", b""]
)
def test_an_entry_without_a_rate_is_measured_anew(content: bytes, tmp_path: Path) -> None:
    probe = Probe(copy=3e12)
    _measured(probe, "copy")
    (entry,) = (tmp_path / "cache/rates").glob("*.braze")
    cache_of(config.snapshot()).write("rates", entry.name.removesuffix(".braze"), content)
    assert _measured(probe, "copy") == 3e12
    assert probe.asked == {"copy": 2}


@pytest.mark.parametrize(
    "found", [CudaError("out of memory"), OSError("no driver"), 0.0, float("nan"), float("inf")]
)
def test_what_cannot_be_measured_is_not_kept(found: Any, tmp_path: Path) -> None:
    assert _measured(Probe(copy=found), "copy") is None
    assert not list((tmp_path / "cache").rglob("*.braze"))
    assert _measured(Probe(copy=3e12), "copy") == 3e12


def test_products_wait_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes some tenths of a second to load: the table holds until the program has used it, or
    what an earlier process kept."""
    loaded = LoadedLibraries()
    monkeypatch.setattr(device_rates, "PRODUCTS_LOADED", loaded)
    library, device = Library(3e12), torch.device("cuda", 0)
    rates = MeasuredRates(device, lambda _, rate: _measured(_probe(library), rate))
    model = replace(H200, measured=rates)
    assert _measured(_probe(library), "products") == NOT_YET and not library.held
    assert model.products(2) == H200.products(2)
    loaded.note(device)
    monkeypatch.setattr(CudaProbe, "_half", _refused)  # it goes on to make matrices there
    assert _measured(_probe(library), "products") is None and +library.held == Counter()
    monkeypatch.undo()
    monkeypatch.setattr(device_rates, "PRODUCTS_LOADED", LoadedLibraries())
    assert _measured(Probe(products=5e14), "products") == 5e14  # an earlier process
    assert _measured(_probe(library), "products") == 5e14


def _refused(*_: Any) -> Any:
    raise RuntimeError("no device")


def test_what_is_not_yet_measured_is_asked_for_again() -> None:
    answers: list[Measured] = [NOT_YET, 3.0, 4.0]
    rates = MeasuredRates(torch.device("cuda", 0), lambda device, rate: answers.pop(0))
    assert [rates.get("copy") for _ in range(3)] == [None, 3.0, 3.0]


def test_without_a_cache_rates_last_as_long_as_the_process() -> None:
    probe = Probe(copy=3.0e12)
    with config.patch(cache=False):
        facts = ("a card without a cache",)
        assert [_measured(probe, "copy", facts) for _ in range(2)] == [3.0e12] * 2
    assert probe.asked == {"copy": 1}


# --- the model -------------------------------------------------------------------------------


def _model(name: str, **rates: float) -> tuple[Any, Counter[str]]:
    asked = Counter[str]()

    def measure(device: torch.device, rate: Rate) -> float | None:
        asked[rate] += 1
        return rates.get(rate)

    measured = MeasuredRates(torch.device("cuda", 0), measure)
    return replace(KNOWN[name], measured=measured), asked


def _of_table(name: str) -> dict[str, float]:
    return _everything(KNOWN[name])


def _everything(model: Any) -> dict[str, float]:
    return {
        "copy": model.memory,
        "hidden": model.hidden_memory,
        "launch": model.launch,
        "half": model.products(2),
        "aligned": model.aligned_products(),
        "processor": model.processor_products(2),
    }


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_not_measured_is_of_the_table(name: str) -> None:
    model, asked = _model(name)
    assert _everything(model) == _of_table(name)
    assert asked == dict.fromkeys(RATES, 1)
    assert model == KNOWN[name] and hash(model) == hash(KNOWN[name])


def test_nothing_is_measured_before_it_is_read() -> None:
    model, asked = _model("A100", copy=1.5e12)
    _ = model.tasks(264), model.blocks_bytes, model.cache, model.operations
    assert not asked
    _ = model.memory, model.memory, model.hidden_memory
    assert asked == {"copy": 1}


@pytest.mark.parametrize("name", KNOWN)
def test_a_slow_card_is_slow_in_all_that_depends_on_it(name: str) -> None:
    """Half of what the counts of the card promise: of its memory, of its matrix units."""
    table = _of_table(name)
    as_counted, _ = _model(name)
    slow, _ = _model(
        name,
        copy=_reference("copy", name) / 2,
        products=_reference("products", name) / 2,
        launch=_reference("launch", name) * 2,
    )
    found = _everything(slow)
    for rate in ("copy", "hidden", "half", "aligned", "processor"):
        assert found[rate] == pytest.approx(table[rate] / 2), rate
    assert found["launch"] == pytest.approx(2 * LAUNCH)
    assert slow.cache == as_counted.cache and slow.operations == as_counted.operations


def _reference(rate: Rate, name: str) -> float:
    """What a measurement gives on a card that makes of its counts what an H200 does."""
    counted = {
        "copy": KNOWN[name].bandwidth / H200.bandwidth,
        "launch": 1.0,
        "products": KNOWN[name].products(2) / H200.products(2),
    }
    return MEASURED_OF_AN_H200[rate] * counted[rate]


@pytest.mark.parametrize("share", [0.01, 0.3, 3.0, 100.0])
def test_what_no_card_reaches_is_no_measurement(share: float) -> None:
    """Another program had the device in these milliseconds, or the clock was wrong."""
    rates = {rate: share * _reference(rate, "L4") for rate in RATES}
    model, asked = _model("L4", **rates)
    assert _everything(model) == _of_table("L4")
    assert asked == dict.fromkeys(RATES, 1)


def test_a_type_of_device_is_measured_by_its_row() -> None:
    table = Measures()
    table.register("cuda", lambda device, rate: float(device.index))
    assert table.rates_of(torch.device("cuda", 3)).get("copy") == 3.0
    assert table.rates_of(torch.device("cpu")).get("copy") is None
    with pytest.raises(AssertionError):
        table.register("cuda", lambda device, rate: None)


# --- the probe, on a driver that keeps time ------------------------------------------------------


class Library:
    """The functions of a driver that a probe calls. A copy takes its bytes at `bandwidth`, the
    first one a hundred times as long; refuses: the function that fails. held: what was made and
    not given back."""

    def __init__(self, bandwidth: float, refuses: str = "") -> None:
        self._bandwidth, self._refuses = bandwidth, refuses
        self._now = 0.0
        self._recorded: dict[int, float] = {}
        self.held = Counter[str]()
        self.modes: list[int] = [0]
        self.copies = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> int:
            if name == self._refuses:
                return 2
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 0

        return answer

    def _make(self, kind: str, reference: Any) -> None:
        self.held[kind] += 1
        reference._obj.value = 1 + self.held.total()

    def _cuMemAlloc_v2(self, reference: Any, size: Any) -> None:
        self._make("memory", reference)

    def _cuMemFree_v2(self, start: Any) -> None:
        self.held["memory"] -= 1

    def _cuStreamCreate(self, reference: Any, flags: Any) -> None:
        self._make("stream", reference)

    def _cuStreamDestroy_v2(self, stream: Any) -> None:
        self.held["stream"] -= 1

    def _cuEventCreate(self, reference: Any, flags: Any) -> None:
        self._make("event", reference)

    def _cuEventDestroy_v2(self, event: Any) -> None:
        self.held["event"] -= 1

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.held["context"] += 1

    def _cuCtxPopCurrent_v2(self, reference: Any) -> None:
        self.held["context"] -= 1

    def _cuThreadExchangeStreamCaptureMode(self, reference: Any) -> None:
        self.modes.append(reference._obj.value)
        reference._obj.value = self.modes[-2]

    def _cuMemcpyDtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> None:
        self._now += 2 * size.value / self._bandwidth * (100 if not self.copies else 1)
        self.copies += 1

    def _cuMemsetD32Async(self, *_: Any) -> None:
        end = time.perf_counter() + 20e-6
        while time.perf_counter() < end:
            pass

    def _cuEventRecord(self, event: Any, stream: Any) -> None:
        self._recorded[event.value] = self._now

    def _cuEventElapsedTime(self, reference: Any, first: Any, second: Any) -> None:
        spent = self._recorded[second.value] - self._recorded[first.value]
        reference._obj.value = spent * 1e3

    def _cuGetErrorName(self, code: int, reference: Any) -> None:
        reference._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY"

    _cuGetErrorString = _cuGetErrorName


def _probe(library: Library) -> CudaProbe:
    return CudaProbe(CudaDriver(library, 0), torch.device("cuda", 0))


@pytest.mark.parametrize("bandwidth", [3e11, 3e12])
def test_a_copy_counts_what_is_read_and_written(bandwidth: float) -> None:
    library = Library(bandwidth)
    assert _probe(library).copy() == pytest.approx(bandwidth, rel=1e-4)
    assert not +library.held
    assert 8 <= library.copies <= 24  # a run of four that loads, and a few that count


def test_a_start_is_timed_on_the_host() -> None:
    library = Library(3e12)
    assert 15e-6 < _probe(library).launch() < 1e-3
    assert not +library.held


@pytest.mark.parametrize(
    "function", ["cuMemAlloc_v2", "cuStreamCreate", "cuEventCreate", "cuMemcpyDtoDAsync_v2"]
)
def test_a_driver_that_refuses_is_left_as_it_was(function: str) -> None:
    library = Library(3e12, refuses=function)
    probe = _probe(library)
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        probe.copy()
    assert not +library.held
    assert _measured(probe, "copy") is None


def test_another_thread_that_captures_is_not_disturbed() -> None:
    """The driver's mode of this thread is relaxed meanwhile, and its own again."""
    library = Library(3e12)
    _probe(library).copy()
    assert library.modes[1:] == [2, 0]
