"""The statements of training programs, as tables.

Names in braces are filled in: {net}, {other} a model; {opt} an optimizer; {layer} a layer's name;
{weight} a parameter; {value}, {value2} tensors of shape (2, 3); {loss}, {loss2} scalars with a
history; {new} the name of what the statement makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Statement:
    """makes: "value", "loss" or "". uses_up: the histories of the losses that it names."""

    weight: float
    text: str
    makes: str = ""
    uses_up: bool = False

    @property
    def carries(self) -> bool:
        """Whether gradients flow from what it makes to a model, if that is not frozen."""
        is_of_a_model = "{net}" in self.text or "{weight}" in self.text
        return is_of_a_model and "grad(" not in self.text and "enabled(" not in self.text


SUPPORT = """\
def halve(p):
    p.grad.mul_(0.5)


class Trunk(nn.Module):
    def __init__(self, start=0):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer('mean', T(3, start=start))
        self.count = 0
        for n, p in enumerate((*self.first.parameters(), *self.second.parameters())):
            p.data = T(*p.shape, start=start + n) / 2
"""
MADE = (
    "A, B = Net(1), Other(2)",
    "A, B = Net(1), Other(2)",
    "A, B = Net(1), Net(2)",
    "A, B = Net(1), Other(2)\nB.first.weight = A.first.weight",
    "A, B = Net(1), Other(2)\nB.second = A.first",
    "A, B = Net(1), Other(2)\nA.second.weight = A.first.weight",
    "A, B = Net(1), Other(2)\nB.requires_grad_(False)",
    "A, B = Net(1), Other(2)\nA.first.requires_grad_(False)",
)
OPTIMIZERS = (
    ("SGD", "lr=0.125"),
    ("SGD", "lr=0.125, momentum=0.5"),
    ("SGD", "lr=0.125, momentum=0.5, weight_decay=0.25, nesterov=True"),
    ("Adam", "lr=0.125"),
    ("AdamW", "lr=torch.tensor(0.125), foreach=False"),
    ("Adagrad", "lr=0.125"),
    ("RMSprop", "lr=0.125, momentum=0.5"),
    ("Adadelta", "lr=0.5"),
)
FORWARD = (
    Statement(5, "{new} = self.first({value})", "value"),
    Statement(4, "{new} = self.second({value})", "value"),
    Statement(2, "{new} = {value} * self.scale", "value"),
    Statement(2, "{new} = F.relu({value} + 0.125, inplace=True)", "value"),
    Statement(2, "{new} = torch.tanh({value})", "value"),
    Statement(1, "{new} = F.linear({value}, self.first.weight.t(), self.mean)", "value"),
    Statement(1, "{new} = F.linear({value}, self.{layer}.weight[:3].view(3, 3))", "value"),
    Statement(1, "{new} = {value} + {value2}", "value"),
    Statement(1, "{new} = {value} * 1\n{new} += self.scale", "value"),
    Statement(1, "{new} = {value}.clone()\n{new}[:, 0] = 0", "value"),
    Statement(1, "{new} = {value} * 2\n{new}.t()[1].mul_(self.scale[0])", "value"),
    Statement(1, "{new} = {value}.clone()\n{new}[0].copy_(self.scale)", "value"),
    Statement(1, "{new} = torch.sigmoid_({value} + 0)", "value"),
    Statement(1, "{new} = self.norm({value})", "value"),
    Statement(1, "{new} = {value} - self.mean", "value"),
    Statement(1, "self.count += 1"),
    Statement(1, "with torch.no_grad():\n    self.mean.lerp_({value}.mean(0), 0.5)"),
    Statement(1, "with torch.no_grad():\n    self.mean += {value}.detach()[0]"),
    Statement(1, "if self.training:\n    self.mean.mul_(0.5).add_({value}.detach().mean(0))"),
    Statement(0.5, "self.mean = {value}.detach().mean(0)"),
    Statement(0.5, "self.seen = {value}"),
    Statement(0.5, "{new} = F.dropout({value}, 0.5, self.training)", "value"),
    Statement(0.5, "{new} = F.dropout({value}, 0.5)", "value"),
    Statement(0.5, "{new} = {value} + torch.rand_like({value})", "value"),
    Statement(0.3, "self.drawn = torch.rand(3)"),
)
FORWARDS = (
    Statement(6, "{new} = {net}({value})", "value"),
    Statement(2, "{new} = {net}({value}.detach())", "value"),
    Statement(2, "with torch.no_grad():\n    {new} = {net}({value})", "value"),
    Statement(1, "with torch.set_grad_enabled(flag):\n    {new} = {net}({value})", "value"),
    Statement(1, "{new} = {value}.detach()", "value"),
    Statement(1, "{new} = {net}.{layer}({value})", "value"),
    Statement(1, "{new} = {value}.detach().requires_grad_()", "value"),
    Statement(
        1,
        "{new} = torch.func.functional_call("
        "{net}, {k: p * 0.5 for k, p in {net}.named_parameters()}, ({value},))",
        "value",
    ),
    Statement(0.7, "{new} = {value} * {weight}.sum()", "value"),
    Statement(0.7, "{new} = {value} + {weight}.view(-1)[0]", "value"),
    Statement(0.5, "{new} = {value} * 1\n{new}.add_({weight}.flatten()[:3])", "value"),
)
LOSSES = (
    Statement(4, "{new} = {value}.square().mean()", "loss"),
    Statement(3, "{new} = F.mse_loss({value}, y)", "loss"),
    Statement(2, "{new} = ({value} - {value2}).abs().sum() + A.scale.sum()", "loss"),
    Statement(2, "{new} = F.cross_entropy({value}, torch.tensor([0, 2]))", "loss"),
    Statement(2, "{new} = {loss} + 0.5 * {loss2}", "loss"),
    Statement(1, "{new} = {value}.sum() * A.scale[0]", "loss"),
    Statement(1, "{new} = sum(p.square().sum() for p in {net}.parameters())", "loss"),
    Statement(1, "{new} = {loss} * 1\n{new} += {weight}.square().sum()", "loss"),
    Statement(1, "{new} = {value}[0].sum() + {weight}.norm()", "loss"),
)
BACKWARDS = (
    Statement(7, "{loss}.backward()", uses_up=True),
    Statement(4, "{loss}.backward(retain_graph=True)"),
    Statement(2, "({loss} * 0.5).backward(retain_graph=True)"),
    Statement(1, "{loss}.backward(torch.tensor(2.0), retain_graph=True)"),
    Statement(1, "({loss} + {loss2}).backward()", uses_up=True),
    Statement(1, "torch.autograd.backward([{loss}, {loss2}], retain_graph=True)"),
    Statement(1, "{loss}.backward(inputs=list({net}.parameters()), retain_graph=True)"),
    Statement(1, "{loss}.backward(inputs=[{weight}], retain_graph=True)"),
    Statement(
        1.5,
        "for p, g in zip({net}.parameters(), torch.autograd.grad("
        "{loss}, list({net}.parameters()), retain_graph=True, allow_unused=True)):\n    p.grad = g",
    ),
    Statement(
        1,
        "g = torch.autograd.grad({loss}, [{weight}], create_graph=True, allow_unused=True)[0]\n"
        "{new} = {loss} + (0.0 if g is None else g.square().sum())",
        "loss",
    ),
    Statement(
        0.7,
        "g = torch.autograd.grad({loss}, [{weight}], retain_graph=True, allow_unused=True)[0]\n"
        "if g is not None:\n    {weight}.data.sub_(g, alpha=0.125)",
    ),
)
_ZEROED = (
    Statement(3, "{opt}.zero_grad()"),
    Statement(2, "{opt}.zero_grad(set_to_none=False)"),
    Statement(1, "{net}.zero_grad()"),
    Statement(1, "{net}.zero_grad(set_to_none=False)"),
    Statement(1, "for p in {net}.parameters():\n    p.grad = None"),
    Statement(
        1, "for p in {net}.parameters():\n    if p.grad is not None:\n        p.grad.zero_()"
    ),
    Statement(
        0.7,
        "for p in {net}.parameters():\n    if p.grad is not None:\n"
        "        p.grad.detach_().zero_()",
    ),
    Statement(0.5, "{weight}.grad = torch.zeros_like({weight})"),
    Statement(0.5, "{weight}.grad = None"),
)
_GRADIENTS = (
    Statement(1, "nn.utils.clip_grad_norm_({net}.parameters(), 0.5, foreach={bool})"),
    Statement(1, "LOG.append(nn.utils.clip_grad_norm_({net}.parameters(), 0.25))"),
    Statement(1, "nn.utils.clip_grad_value_({net}.parameters(), 0.25, foreach={bool})"),
    Statement(
        1, "for p in {net}.parameters():\n    if p.grad is not None:\n        p.grad.mul_({rate})"
    ),
    Statement(
        1, "for p in {net}.parameters():\n    if p.grad is not None:\n        p.grad *= {rate}"
    ),
    Statement(
        1,
        "for p in {net}.parameters():\n    if p.grad is not None:\n"
        "        p.grad = p.grad * {rate}",
    ),
    Statement(
        1,
        "for p in {net}.parameters():\n    if p.grad is not None:\n"
        "        p.grad.data.clamp_(-0.5, 0.5)",
    ),
    Statement(1, "if {weight}.grad is not None:\n    {weight}.grad[0] = 0"),
    Statement(1, "for p, q in zip(A.parameters(), B.parameters()):\n    q.grad = p.grad"),
    Statement(
        1,
        "for p, q in zip(A.parameters(), B.parameters()):\n"
        "    q.grad = None if p.grad is None else p.grad.clone()",
    ),
    Statement(
        0.7,
        "kept = [None if p.grad is None else p.grad.clone() for p in {net}.parameters()]\n"
        "{net}.zero_grad()\n"
        "for p, g in zip({net}.parameters(), kept):\n    p.grad = g",
    ),
    Statement(0.7, "LOG.append({weight}.grad)"),
    Statement(0.7, "LOG.append({weight}.grad is None)"),
    Statement(
        0.5,
        "found = [p.grad for p in {net}.parameters() if p.grad is not None]\n"
        "if found:\n    torch._foreach_mul_(found, 0.5)",
    ),
)
STEPS = (
    Statement(6, "{opt}.step()"),
    Statement(
        1,
        "with torch.no_grad():\n    for p in {net}.parameters():\n"
        "        if p.grad is not None:\n            p -= 0.125 * p.grad",
    ),
    Statement(
        0.7,
        "for p in {net}.parameters():\n    if p.grad is not None:\n"
        "        p.data.add_(p.grad, alpha=-0.125)",
    ),
    Statement(
        0.7,
        "for p in {net}.parameters():\n    if p.grad is not None:\n"
        "        p.data = p.data - 0.125 * p.grad",
    ),
    Statement(1, "{opt}.param_groups[0]['lr'] *= 0.5"),
    Statement(0.5, "for group in {opt}.param_groups:\n    group['weight_decay'] = 0.125"),
)
_STATES = (
    Statement(1, "{net}.requires_grad_({bool})"),
    Statement(1, "{net}.{layer}.requires_grad_({bool})"),
    Statement(1, "{weight}.requires_grad_({bool})"),
    Statement(0.7, "{weight}.requires_grad = not {weight}.requires_grad"),
    Statement(
        0.7, "for p in {net}.{layer}.parameters():\n    p.requires_grad = not p.requires_grad"
    ),
    Statement(0.7, "{net}.train({bool})"),
    Statement(0.7, "{net}.count += 1"),
    Statement(1, "LOG.append({value}.detach())"),
    Statement(0.7, "LOG.append({loss}.item())"),
    Statement(0.5, "LOG.append({loss})"),
    Statement(
        1,
        "with torch.no_grad():\n    for p, q in zip(A.parameters(), B.parameters()):\n"
        "        q.lerp_(p, 0.5)",
    ),
    Statement(
        1,
        "with torch.no_grad():\n    for p, q in zip(A.parameters(), B.parameters()):\n"
        "        q.copy_(p)",
    ),
    Statement(
        0.7,
        "for p, q in zip(A.parameters(), B.parameters()):\n"
        "    q.data.mul_(0.5).add_(p.data, alpha=0.5)",
    ),
    Statement(0.5, "for p, q in zip(A.parameters(), B.parameters()):\n    q.data = p.data.clone()"),
    Statement(0.5, "for p, q in zip(A.buffers(), B.buffers()):\n    q.copy_(p)"),
    Statement(0.7, "{other}.load_state_dict({net}.state_dict())"),
    Statement(0.7, "with torch.no_grad():\n    {weight}[0] = 0"),
    Statement(0.7, "with torch.no_grad():\n    {weight}.view(-1)[1:].mul_(0.5)"),
    Statement(0.7, "{weight}.data.flatten()[:2].zero_()"),
    Statement(0.5, "with torch.no_grad():\n    {weight}.clamp_(-1, 1)"),
    Statement(0.7, "{net}.mean.mul_(0.5)"),
    Statement(0.5, "{net}.mean = {value}.detach().mean(0)"),
    Statement(0.5, "B.{layer}.weight = A.first.weight"),
    Statement(0.3, "B.{layer}.weight = nn.Parameter(A.first.weight.detach().clone())"),
    Statement(0.3, "B.first, B.second = B.second, B.first"),
)
_LONGER = (
    Statement(
        0.5,
        "kept = {k: v.clone() for k, v in {net}.state_dict().items()}\n"
        "{opt}.step()\n{net}.load_state_dict(kept)",
    ),
    Statement(
        0.5,
        "w = nn.utils.parameters_to_vector({net}.parameters())\n"
        "nn.utils.vector_to_parameters(w * 0.5, {net}.parameters())",
    ),
    Statement(0.5, "h = {weight}.register_hook(lambda g: g * 0.5)\n{opt}.zero_grad()\nh.remove()"),
)
STATEMENTS = (*FORWARDS, *LOSSES, *BACKWARDS, *_ZEROED, *_GRADIENTS, *STEPS, *_STATES, *_LONGER)
_SETTINGS = (
    Statement(1, "{opt}.param_groups[0]['foreach'] = {bool}"),
    Statement(0.7, "{opt}.param_groups[-1]['maximize'] = {bool}"),
    Statement(0.7, "{opt}.param_groups[0]['lr'] = {rate}"),
    Statement(0.5, "{opt}.param_groups[0]['lr'] = torch.tensor({rate})"),
    Statement(0.5, "{opt}.param_groups[0]['weight_decay'] = {rate}"),
    Statement(0.5, "{opt} = optim.SGD({net}.parameters(), lr={rate}, momentum=0.5)"),
    Statement(0.5, "{opt} = optim.Adam([{weight}], lr={rate})"),
    Statement(0.5, "{opt}.load_state_dict({opt}.state_dict())"),
    Statement(0.5, "{opt}.state.clear()"),
    Statement(0.5, "{opt}.add_param_group({'params': [P(3, 3)]})"),
    Statement(0.5, "{opt}.param_groups[0]['params'].reverse()"),
    Statement(0.5, "{net}.{layer} = nn.Linear(3, 3, bias={bool}).requires_grad_({bool})"),
    Statement(0.5, "A, B = B, A"),
    Statement(0.5, "o1, o2 = o2, o1"),
    Statement(0.5, "{weight}.grad = {weight}.detach()"),
    Statement(0.5, "{weight}.grad = torch.ones_like({weight})"),
    Statement(0.5, "{weight}.data = {weight}.data.clone()"),
    Statement(0.5, "{net}.{layer}.weight.data = {net}.{layer}.weight.data.t()"),
    Statement(0.5, "{net}.{layer}.weight.grad = T(3, 3).t()"),
    Statement(0.5, "{net}.{layer}.weight.data = torch.cat([{net}.{layer}.weight.data] * 2)[3:]"),
    Statement(0.5, "{net}.{layer}.register_forward_hook(lambda m, i, o: o * 0.5)"),
    Statement(0.5, "hook = {weight}.register_hook(lambda g: g * 0.5)"),
    Statement(
        0.5,
        "hook = {weight}.register_post_accumulate_grad_hook(lambda p: LOG.append(p.grad[0]))",
    ),
    Statement(0.3, "hook = {weight}.register_post_accumulate_grad_hook(halve)"),
    Statement(0.5, "x.requires_grad_({bool})"),
    Statement(0.5, "x.grad = None"),
    Statement(0.3, "torch.set_grad_enabled({bool})"),
    Statement(0.3, "x = x.t().contiguous().t()"),
    Statement(0.3, "y = x"),
    Statement(0.3, "R.clear()"),
)
BETWEEN = (
    *_SETTINGS,
    *_ZEROED,
    *(row for row in _STATES if not row.makes and "{loss}" not in row.text),
    *(row for row in STEPS if "opt" in row.text),
)
