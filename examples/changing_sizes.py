"""Batches of changing size: one recompile by itself, none where it is said beforehand."""

import torch

import braze


def normalized(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def main() -> None:
    # By itself: the second size makes the dimension a symbol, and no third compile follows.
    by_itself = braze.compile(normalized, name="by itself")
    for rows in (8, 16, 24, 100):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(by_itself(x), normalized(x))
    assert braze.status()["by itself"].recompiles == 1

    # All sizes are symbols from the first call on.
    dynamic = braze.compile(normalized, dynamic=True, name="dynamic")
    for shape in ((8, 3), (16, 5), (24, 7)):
        dynamic(torch.randn(shape))
    assert braze.status()["dynamic"].recompiles == 0

    # One dimension is marked, the other stays a constant of the kernels.
    marked = braze.compile(normalized, name="marked")
    for rows in (8, 16, 24):
        x = torch.randn(rows, 3)
        braze.mark_dynamic(x, 0)
        marked(x)
    assert braze.status()["marked"].recompiles == 0

    # A size that decides the program is no symbol: here the loop is unrolled for each length.
    unrolled = braze.compile(lambda x: sum(row.sin() for row in x), name="unrolled")
    for rows in (2, 3):
        unrolled(torch.randn(rows, 3))
    print(braze.status())


if __name__ == "__main__":
    main()
