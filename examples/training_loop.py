"""An ordinary training loop: only the model is compiled, the loop stays as it is."""

import torch

import braze


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on two spirals, and on which of them each lies."""
    angle = torch.rand(count) * 6 + 0.5
    label = torch.randint(0, 2, (count,))
    turned = angle + label * torch.pi
    points = torch.stack([angle * turned.cos(), angle * turned.sin()], 1) / 6
    return points + torch.randn(count, 2) * 0.02, label


def main() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 2))
    compiled = braze.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    points, labels = spirals(512)

    for epoch in range(150):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(compiled(points), labels)
        loss.backward()  # the compiled backward
        optimizer.step()
        if epoch % 50 == 0:
            print(f"epoch {epoch:3}: loss {loss.item():.3f}")

    with torch.no_grad():
        accuracy = (compiled(points).argmax(1) == labels).float().mean().item()
    print(f"accuracy {accuracy:.2f}")
    assert accuracy > 0.9
    torch.save(compiled.state_dict(), "spirals.pt")  # the same keys as the model's
    model.load_state_dict(torch.load("spirals.pt"))


if __name__ == "__main__":
    main()
