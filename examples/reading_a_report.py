"""Find graph breaks in a report, and remove them one by one."""

import torch

import braze


def noisy(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    print("mean", y.mean().item())  # shows a value: the graph ends here
    if y.max() > 2:  # depends on data: and here
        y = y.clamp(max=2.0)
    return y.log()


def quiet(x: torch.Tensor) -> torch.Tensor:
    """The same without breaks: a clamp needs no branch, and what is shown is returned."""
    return x.exp().clamp(max=2.0).log()


def main() -> None:
    x = torch.linspace(-1, 1, 100)
    report = braze.explain(noisy)(x)
    print(report)  # `report.show()` prints it in colour
    print()
    for note in report.break_reasons:
        print(f"[{note.code}] {note.reason}\n    fix: {note.hint}")
    assert report.graph_count > 1

    better = braze.explain(quiet)(x)
    assert (better.graph_count, better.break_count) == (1, 0)
    assert better.extern_ops == ()  # everything is in kernels of Braze's
    print(f"\nwithout breaks: {better.graph_count} graph of {better.op_count} operators")
    torch.testing.assert_close(better.result, quiet(x))


if __name__ == "__main__":
    main()
