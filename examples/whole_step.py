"""A whole training step as one graph: forward, loss, backward, clipping and the optimizer."""

import torch

import braze


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)

    @braze.compile
    def step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    inputs = torch.randn(64, 16)
    labels = (inputs[:, :4]).argmax(1)
    for number in range(60):
        loss = step(inputs, labels)
        schedule.step()  # outside: the graph reads the new rate at its next call
        if number % 20 == 0:
            print(f"step {number:2}: loss {loss.item():.3f}")

    # The first step makes the optimizer's state; the second is compiled, for all others.
    row = braze.status()[-1]
    print(f"{row.calls} calls, {row.graphs} graph, {row.calls_left} left to eager")
    assert row.times_broken == 0
    assert loss.item() < 0.8


if __name__ == "__main__":
    main()
