"""Autograd, functional transforms, checkpoints, custom operators."""

TEXT = """
== custom function
class Custom§(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, k):
        ctx.save_for_backward(v)
        ctx.k = k
        «pass|ctx.set_materialize_grads(False)|LOG.append(ctx.needs_input_grad[0])|ctx.extra = v.shape»
        return v * k
    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        «LOG.append("backward")|pass|LOG.append(ctx.k)»
        return grad * ctx.k «|* 2|+ v * 0», None
--
y§ = Custom§.apply($T * X1, «$N|2.0»)
«y§.sum().backward() if y§.requires_grad else None|pass|g§ = torch.autograd.grad(y§.sum(), X1)[0] if y§.requires_grad and X1.requires_grad else 0»
t§ = y§«|.detach()»
o§ = [y§.requires_grad, X1.grad is None, y§.grad_fn is None]
--
Custom§.backward = staticmethod(lambda ctx, grad: (grad * 7, None))
Custom§.forward = staticmethod(lambda ctx, v, k: v + k)
X1.requires_grad_(False)
X1.grad = None
Custom§.apply = lambda v, k: v
== custom function with two outputs
class Two§(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        out = v * 2
        index = v.detach().argmax() if v.numel() else v.detach().sum()
        «ctx.mark_non_differentiable(index)|pass»
        return out, index
    @staticmethod
    def backward(ctx, grad, other):
        LOG.append(other is None)
        return grad * 3
--
y§, i§ = Two§.apply($T * X1)
o§ = [i§, i§.requires_grad, y§.requires_grad]
y§.sum().backward() if y§.requires_grad else None
t§ = y§.detach()
== custom function in place
class Dirty§(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.mark_dirty(v)
        return v.mul_(2)
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
--
z§ = $T * X1
y§ = Dirty§.apply(z§)
o§ = [y§ is z§, z§.requires_grad, z§._version]
t§ = z§.detach()
== custom function forward mode
class Forward§(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_forward(v)
        return v * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
    @staticmethod
    def jvp(ctx, tangent):
        LOG.append("jvp")
        return tangent * «2|5»
import torch.autograd.forward_ad as forward_ad
--
with forward_ad.dual_level():
    dual§ = forward_ad.make_dual($T.detach(), torch.ones_like($T))
    y§ = «Forward§.apply(dual§)|dual§ * 3|dual§.sin()|Forward§.apply(dual§) * 2»
    o§ = forward_ad.unpack_dual(y§).tangent
t§ = $T + 1
== tensor hooks
--
y§ = $T * X1
if y§.requires_grad:
    «y§.register_hook(lambda g: LOG.append("hook"))|y§.register_hook(lambda g: g * 2)|y§.retain_grad()|h§ = y§.register_hook(lambda g: g * 3); h§.remove()|pass|y§.grad_fn.register_hook(lambda *g: LOG.append("node"))»
    y§.sum().backward()
o§ = [y§.grad if y§.retains_grad else None, X1.grad]
t§ = y§.detach()
--
X1.grad = None
X1.register_hook(lambda g: g * 4)
X1.register_post_accumulate_grad_hook(lambda p: LOG.append("post"))
X1.requires_grad_(False)
X1.grad = torch.ones(3)
== grad
--
y§ = ($T * X1).square()
o§ = «torch.autograd.grad(y§.sum(), X1, allow_unused=True) if X1.requires_grad else 0|torch.autograd.grad(y§.sum(), X1, create_graph=True)[0].sum() if X1.requires_grad else 0|y§.grad_fn is None|y§.backward(torch.ones_like(y§)) if y§.requires_grad else 0|torch.autograd.grad(y§.sum(), [X1], retain_graph=True, materialize_grads=True) if X1.requires_grad else 0|torch.autograd.grad([y§.sum(), y§.mean()], X1) if X1.requires_grad else 0|y§.sum().backward(inputs=[X1]) if X1.requires_grad else 0|X1.grad»
t§ = y§.detach()
--
X1.grad = None
X1.requires_grad_(False)
X1.grad = torch.ones(3)
X1.grad.add_(1)
== gradient used
--
if x.requires_grad and x.is_leaf:
    (x * 2).sum().backward()
    o§a = x.grad is not None
    t§b = x.grad * 2
t§ = $T + (x.grad.mean() if x.is_leaf and x.grad is not None else 1)
--
X1.grad = None
X1.grad = torch.ones(3)
== history questions
--
y§ = $T * X1
o§ = «y§.grad_fn is not None|y§.grad_fn.next_functions is not None if y§.grad_fn else 0|len(y§.grad_fn.next_functions) if y§.grad_fn else 0|y§.requires_grad|y§.is_leaf|y§.detach().is_leaf|(y§.detach() * 2).requires_grad|y§.data.requires_grad|type(y§.grad_fn).__name__ != ""|y§.requires_grad_().is_leaf|torch.autograd.graph.get_gradient_edge(y§).output_nr if y§.requires_grad else 0|y§.detach().requires_grad_().is_leaf|y§[0].grad_fn is None|y§.clone().requires_grad»
t§ = y§ «.detach()|+ 1»
--
X1.requires_grad_(False)
X1 = torch.ones(3)
== requires grad inside
--
y§ = $T.detach().clone()«.requires_grad_()|.requires_grad_(n > 1)|»
z§ = (y§ * n).sum()
z§.backward() if z§.requires_grad else None
o§ = [y§.grad, y§.is_leaf]
t§ = $T + (y§.grad.mean() if y§.grad is not None else 2)
== detach and data
--
y§ = $T * X1
«y§.detach_()|y§.data.add_(1)|y§.detach().add_(1)|y§.requires_grad_(False) if not y§.requires_grad else None|y§ = y§.detach()|pass»
o§ = [y§.requires_grad, y§.is_leaf]
t§ = y§ * 2
== transforms
def loss§(v):
    return (v * scale§).square().sum()
scale§ = $I
from torch.func import grad, vmap, jvp, vjp, jacrev
--
v§ = $T.detach()
o§ = «grad(loss§)(v§)|vmap(lambda r: r * 2)(v§)|jvp(loss§, (v§,), (torch.ones_like(v§),))|vjp(loss§, v§)[1](torch.tensor(1.0))|torch.func.grad_and_value(loss§)(v§)|vmap(lambda r: r.sum())(v§) if v§.shape[0] else 0|jacrev(lambda r: r.sum())(v§)|torch.func.hessian(loss§)(v§).sum()|torch.func.linearize(loss§, v§)[0]|vmap(lambda r: r + LOG.__len__(), in_dims=1, out_dims=1)(v§)|torch.autograd.functional.jacobian(loss§, v§)|torch.func.functionalize(lambda r: r.clone().add_(1))(v§)»
t§ = $T + loss§(v§) * 0.1
--
scale§ = $I
loss§ = lambda v: v.sum()
== checkpoint
from torch.utils.checkpoint import checkpoint
def block§(v):
    LOG.append("block")
    return «v.sin() * X1|F.dropout(v, 0.5) * X1|(v * X1).exp2()»
--
y§ = checkpoint(block§, $T, use_reentrant=«False|False|True»«|, preserve_rng_state=False|, early_stop=False»)
«y§.sum().backward() if y§.requires_grad else None|pass»
t§ = y§.detach()
o§ = len(LOG)
--
X1.requires_grad_(False)
block§ = lambda v: v * X1
== custom operator
@torch.library.custom_op("fuzz§::op", mutates_args=(«|"v",»))
def op§(v: torch.Tensor, k: float) -> torch.Tensor:
    LOG.append("op")
    «pass|v.mul_(1)»
    return v * k
@op§.register_fake
def _(v, k):
    return torch.empty_like(v)
--
t§ = «op§|torch.ops.fuzz§.op»($T.detach().clone(), float(n))
--
op§.register_kernel("cpu")(lambda v, k: v + 5)
op§.register_autograd(lambda ctx, g: (g, None))
== library operator
library§ = torch.library.Library("fuzzlib§", "DEF")
library§.define("f(Tensor v) -> Tensor"«|, tags=torch.Tag.pt2_compliant_tag»)
library§.impl("f", lambda v: (LOG.append("f"), v.clone() * 2)[1], "«CompositeExplicitAutograd|CPU|CompositeImplicitAutograd»")
--
t§ = torch.ops.fuzzlib§.f($T.detach())
== writes hidden from the schema
library§ = torch.library.Library("hidden§", "DEF")
library§.define("bump(«Tensor|Tensor(a!)» v) -> ()")
state§ = torch.zeros(3)
def bump§(v):
    state§.add_(1)
library§.impl("bump", bump§, "CompositeExplicitAutograd")
--
torch.ops.hidden§.bump($T.detach())
t§ = $T + state§
o§ = state§.sum()
--
state§.zero_()
== inference tensors
--
with torch.inference_mode():
    y§ = $T * 2
    v§ = y§«[0:1]|.view(-1)|.t()|.reshape(-1)|.expand_as(y§)»
    y§.add_(1)
o§ = [y§.is_inference(), v§.is_inference(), y§.requires_grad]
t§ = y§.clone()
== accumulated
class Total§:
    grads = []
--
y§ = $T.detach().requires_grad_()
(y§ * y§).sum().backward()
Total§.grads.append(y§.grad)
t§ = y§.grad * len(Total§.grads)
--
Total§.grads.clear()
== no grad write
p§ = nn.Parameter(torch.ones(3))
--
loss§ = ($T.detach() * p§).sum()
loss§.backward()
with torch.no_grad():
    p§.«add_(p§.grad, alpha=-0.1)|sub_(p§.grad)|copy_(p§ * 2)»
    p§.grad«.zero_()| = None|.mul_(1)»
t§ = $T + p§.detach()
--
p§.grad = torch.ones(3)
p§.requires_grad_(False)
p§.data = torch.ones(3) * 3
p§ = nn.Parameter(torch.zeros(3))
p§.register_hook(lambda g: g * 2)
"""
