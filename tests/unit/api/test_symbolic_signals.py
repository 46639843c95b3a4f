"""Fourier transforms of signals whose length varies, and what Python asks of their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fft

import braze
from braze.trace import Journal

WINDOW = torch.hann_window(16)


def spectrogram(x: torch.Tensor) -> torch.Tensor:
    found = torch.stft(x, 16, 4, window=WINDOW, return_complex=True)[..., :-1].abs() ** 2
    return (torch.ones(5, 9) @ found).clamp(min=1e-10).log10()


def short_window(x: torch.Tensor) -> torch.Tensor:
    return x.stft(24, 5, 16, WINDOW, normalized=True, return_complex=True)


def one_signal(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(x[0], 16, 5, window=WINDOW, center=False, return_complex=True)


def there_and_back(x: torch.Tensor) -> Any:
    return fft.irfft(fft.rfft(x)[..., :20], n=x.shape[-1]), fft.irfft2(fft.rfft2(x), s=x.shape)


def two_dimensions(x: torch.Tensor) -> Any:
    return fft.rfft2(x, dim=(1, 0), norm="ortho"), fft.rfftn(x), fft.rfft(x, dim=-1)


SIGNALS = [(2, 64), (2, 80), (3, 101)]


@pytest.mark.parametrize(
    "program",
    [spectrogram, short_window, one_signal, there_and_back, two_dimensions],
    ids=lambda program: program.__name__,
)
def test_one_compile_for_all_lengths(program: Callable[..., Any], journal: Journal) -> None:
    compiled = braze.compile(
        program, dynamic=True, backend="aot_eager", options={"suppress_errors": False}
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for shape in SIGNALS:
            x = torch.randn(shape)
            found, expected = compiled(x), program(x)
            torch.testing.assert_close(found, expected)
            if isinstance(expected, torch.Tensor):
                assert found.stride() == expected.stride()
    assert len(journal.records()) == 1 and not journal.fallbacks()


def test_a_signal_that_is_too_short_raises_what_eager_raises() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, window=WINDOW, center=False, return_complex=True)

    compiled = braze.compile(program, dynamic=True, backend="aot_eager")
    compiled(torch.ones(2, 64))
    with pytest.raises(RuntimeError) as expected:
        program(torch.ones(2, 9))
    with pytest.raises(RuntimeError) as found:
        compiled(torch.ones(2, 9))
    assert str(found.value) == str(expected.value)


# (program, compiles of three sizes)
ASKED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "numel": (lambda x: x / x.size().numel() * x.shape[1:].numel(), 1),
    "parts": (lambda x: x * x.shape[0].real + x.shape[0].imag + x.shape[0].numerator, 1),
    "round": (lambda x: x * round(x.shape[0]), 1),
    "round of a half": (lambda x: x * round(x.shape[0] / 2), 3),
    "bit_length": (lambda x: x * (1 << (x.shape[0] - 1).bit_length()), 3),
    "is_integer": (lambda x: x * 2 if (x.shape[0] / 2).is_integer() else x, 3),
}


@pytest.mark.parametrize("name", ASKED)
def test_methods_of_sizes(name: str, journal: Journal) -> None:
    program, compiles = ASKED[name]
    compiled = braze.compile(program, dynamic=True, backend="aot_eager", fullgraph=True)
    for n in (5, 6, 9):
        x = torch.ones(n, 3)
        assert torch.equal(compiled(x), program(x))
    assert len(journal.records()) == compiles and not journal.fallbacks()
