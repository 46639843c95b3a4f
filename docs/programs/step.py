import torch

import braze


@braze.compile
def step(x, w, target):
    loss = ((x @ w).relu() - target).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
    return loss.detach()


weight = torch.ones(8, 4, requires_grad=True)
print(step(torch.ones(16, 8), weight, torch.zeros(16, 4)))
