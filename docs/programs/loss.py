import torch

import braze


@braze.compile
def loss_of(x, w, target):
    return ((x @ w).relu() - target).pow(2).mean()


weight = torch.ones(8, 4, requires_grad=True)
loss_of(torch.ones(16, 8), weight, torch.zeros(16, 4)).backward()
