"""A reshape that eager makes as a view came out as a copy in other strides: C++ asks whether sizes
agree with a default, which was taken though the sizes at hand had the answer."""

from __future__ import annotations

import torch

import braze


def test_reshape_around_a_dimension_of_one() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.flip(-1).unsqueeze(2) * 0.5
        return y.reshape(*y.shape[:-1], -1, 4)

    compiled = braze.compile(program, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for length in (17, 5, 7):
            x = torch.randn(3, length, 4).permute(2, 0, 1).contiguous().permute(1, 2, 0)
            expected, found = program(x), compiled(x)
            assert found.stride() == expected.stride()
            assert torch.equal(found, expected)
