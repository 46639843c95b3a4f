"""Modules: what may be registered, replaced, hooked and written between calls."""

_WORLDS = """
m§.register_buffer("extra", torch.ones(3) * 5)
m§.register_parameter("extra", nn.Parameter(torch.ones(3)))
m§.extra = None
m§.extra = 5
del m§.extra
m§.register_module("lin", nn.Linear(3, 3))
m§.lin = nn.Identity()
m§.lin.weight = nn.Parameter(torch.eye(3))
m§.lin.bias = None
m§.lin.weight.data.mul_(2)
m§.lin.weight.requires_grad_(False)
m§.lin.register_parameter("bias", None)
m§.eval()
m§.train()
m§.training = False
m§.lin.train(False)
m§.scale = $I
m§.__dict__["scale"] = 6
del m§.scale
type(m§).scale = 7
m§._buffers["count"] = torch.tensor(9.0)
m§.count = torch.tensor(4.0)
m§.count.add_(1)
m§._buffers.pop("count", None)
m§._non_persistent_buffers_set.add("count")
m§.register_forward_hook(lambda mod, args, out: LOG.append("hook"))
m§.register_forward_hook(lambda mod, args, out: out * 2)
m§.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
m§.lin.register_forward_hook(lambda mod, args, out: out + 3)
m§.lin.register_forward_pre_hook(lambda mod, args, kwargs: (args, kwargs), with_kwargs=True)
m§._forward_hooks.clear()
m§.lin._forward_hooks.clear()
m§.register_full_backward_hook(lambda mod, gin, gout: LOG.append("back"))
nn.modules.module.register_module_forward_hook(lambda mod, args, out: LOG.append(type(mod).__name__))
nn.modules.module.register_module_forward_pre_hook(lambda mod, args: LOG.append("pre"))
m§.forward = lambda v: v * 9
m§.lin.forward = lambda v: v - 1
type(m§).forward = lambda self, v: v + 8
nn.Linear.forward = lambda self, v: v * 4
del m§.forward
m§.double()
m§.float()
m§.requires_grad_(False)
m§.zero_grad()
m§.load_state_dict({k: v + 1 for k, v in m§.state_dict().items()}, strict=False)
m§.apply(lambda mod: setattr(mod, "seen", True))
m§.more = nn.Linear(3, 3)
m§.add_module("tail", nn.Tanh())
m§._modules["lin"] = nn.Sigmoid()
m§._modules.pop("lin")
m§.__class__ = type("Changed", (type(m§),), {"forward": lambda self, v: v * 5})
m§ = copy.deepcopy(m§)
m§.lin = torch.nn.utils.parametrizations.weight_norm(m§.lin)
torch.nn.utils.parametrize.register_parametrization(m§.lin, "weight", nn.ReLU())
type(m§).__call__ = lambda self, v: v * 6
nn.modules.module._global_forward_hooks.clear()
m§.share_memory()
m§.half(); m§.float()
m§.lin.weight.grad = torch.ones(3, 3)
m§.set_extra_state = lambda state: None
"""
TEXT = f"""
== module
class Module§(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)
        self.scale = $I
        self.register_buffer("count", torch.tensor(1.0)«|, persistent=False»)
    def forward(self, v):
        if «hasattr(self, "extra")|getattr(self, "extra", None) is not None|"extra" in self._buffers|"extra" in dict(self.named_parameters())|self.training|len(self._modules) > 1|"extra" in self.__dict__|self.lin.weight.requires_grad|len(list(self.buffers())) > 1|len(self._forward_hooks)|"extra" in self.state_dict()|isinstance(self.lin, nn.Linear)|self.lin.training|self.__dict__.get("flag")|hasattr(self.lin, "bias") and self.lin.bias is None|type(self) is Module§»:
            v = v + 1
        «self.count += 1|self.count = self.count + 1|self.scale = self.scale|pass|self.seen = True|LOG.append(self.scale)|self.count.add_(1)»
        return self.lin(v) * self.scale + self.count
m§ = Module§()
--
t§ = m§($T)
«t§ = t§.detach()|t§ = t§ + 0»
o§ = «len(list(m§.parameters()))|sorted(m§.state_dict())|m§.training|[n for n, _ in m§.named_modules()]|m§.count|repr(m§.lin)|sum(p.numel() for p in m§.parameters())|m§._get_name()|hasattr(m§, "seen")»
--{_WORLDS.rstrip()}
== absent buffer
class Cached§(nn.Module):
    def __init__(self):
        super().__init__()
        «self.cache = None|self.register_buffer("cache", None)|pass|self.register_buffer("cache", None, persistent=False)»
    def forward(self, v):
        cache = «getattr(self, "cache", None)|self._buffers.get("cache")|self.__dict__.get("cache")|self._parameters.get("cache")|dict(self.named_buffers()).get("cache")»
        if cache is None:
            «self.cache = torch.ones(3)|self.register_buffer("cache2", torch.ones(3) * 2)|pass|self.hits = 1»
            return v + 1
        return v + cache
m§ = Cached§()
--
t§ = m§($T)
o§ = [sorted(m§._buffers), sorted(k for k in m§.__dict__ if not k.startswith("_")), hasattr(m§, "cache2")]
--
m§.register_buffer("cache", torch.ones(3) * 3)
m§.cache = torch.ones(3)
m§.cache = None
m§.cache = nn.Parameter(torch.ones(3))
m§._buffers.clear()
m§.__dict__.pop("cache", None)
m§.__dict__["cache"] = torch.ones(3) * 4
m§.cache2 = torch.zeros(3)
del m§.cache
del m§.cache2
Cached§.cache = torch.ones(3) * 7
== containers of modules
seq§ = nn.Sequential(nn.Linear(3, 3), nn.ReLU()«|, nn.Dropout(0.0)|, nn.BatchNorm1d(3, track_running_stats=False)|, nn.LayerNorm(3)»)
list§ = nn.ModuleList([nn.ReLU(), nn.Identity()])
dict§ = nn.ModuleDict({{"a": nn.Tanh()}})
par§ = nn.ParameterList([torch.ones(3)]); pdict§ = nn.ParameterDict({{"p": torch.ones(3)}})
--
t§ = «seq§($T)|list§[0]($T)|dict§["a"]($T)|$T * par§[0]|$T + pdict§["p"]|seq§[1]($T)|list§[-1]($T)»
for layer§ in «list§|seq§[1:]|dict§.values()|seq§.children()|[seq§[0]]»:
    t§ = layer§(t§)
o§ = [len(seq§), len(list§), "b" in dict§, len(par§), list(pdict§), [type(v).__name__ for v in list§]]
«pass|list§.append(nn.ReLU())|dict§["b"] = nn.ReLU()|par§.append(torch.ones(3))»
--
seq§.append(nn.Tanh())
seq§[0] = nn.Identity()
del seq§[1]
list§.append(nn.Sigmoid())
list§.insert(0, nn.Tanh())
list§[0] = nn.Sigmoid()
dict§["b"] = nn.ReLU()
dict§["a"] = nn.ReLU()
dict§.pop("a")
par§[0] = torch.zeros(3)
par§.append(torch.ones(3))
pdict§["q"] = torch.ones(3)
seq§.requires_grad_(False)
seq§.eval()
list§.__class__ = nn.Sequential
seq§._modules["0"], seq§._modules["1"] = seq§._modules["1"], seq§._modules["0"]
== module hooks inside
lin§ = nn.Linear(3, 3)
--
handle§ = lin§.register_forward_«hook(lambda m, a, out: «LOG.append("h")|out * 2|None»)|pre_hook(lambda m, a: LOG.append("p"))|hook(lambda m, a, k, out: out + len(k), with_kwargs=True)|hook(lambda m, a, out: out, always_call=True)|hook(lambda m, a, out: out * 3, prepend=True)»
t§ = lin§($T).detach()
«handle§.remove()|pass|handle§.remove() if n > 1 else None»
o§ = [len(lin§._forward_hooks), len(lin§._forward_pre_hooks)]
--
lin§._forward_hooks.clear()
lin§.register_forward_hook(lambda m, a, out: out * 5)
lin§ = nn.Linear(3, 3)
== statistics
norm§ = nn.«BatchNorm1d(3)|BatchNorm1d(3, momentum=None)|BatchNorm1d(3, affine=False)|LayerNorm(3)|InstanceNorm1d(3, track_running_stats=False)|RMSNorm(3)»
drop§ = nn.Dropout(«0.5|0.0»)
--
t§ = norm§(torch.cat([$T, torch.ones(2, 3)]))[: $T.shape[0]].detach()
t§a = drop§($T)
o§ = [norm§.training, getattr(norm§, "num_batches_tracked", None)]
--
norm§.eval()
norm§.train()
drop§.eval()
drop§.p = 0.25
norm§.momentum = 0.5
norm§.eps = 0.1
norm§.track_running_stats = False
norm§.running_mean = None; norm§.running_var = None
norm§.reset_running_stats() if hasattr(norm§, "reset_running_stats") else None
== shared parameters
a§ = nn.Linear(3, 3); b§ = nn.Linear(3, 3)
«b§.weight = a§.weight|b§.bias = a§.bias|pass»
--
t§ = (a§($T) + b§($T)).detach()
o§ = [a§.weight is b§.weight, len({{id(p) for p in [*a§.parameters(), *b§.parameters()]}}), a§.bias is b§.bias]
--
b§.weight = a§.weight
b§.weight = nn.Parameter(a§.weight.clone())
a§.weight.data.zero_()
with torch.no_grad(): a§.weight.mul_(2)
a§, b§ = b§, a§
== module surgery inside
m§ = nn.Sequential(nn.Linear(3, 3))
--
«m§.flag = n|m§.add_module("x", nn.ReLU())|m§.register_buffer("b", torch.ones(3) * n)|m§[0].bias = None|m§.eval()|m§.train(n > 1)|m§[0] = nn.Identity()|m§.__dict__["v"] = n|m§._buffers["b"] = torch.ones(3)|m§.requires_grad_(n > 1)|m§[0].weight.data = torch.eye(3)|m§.w = nn.Parameter(torch.ones(3))|m§.zero_grad()|setattr(m§, "weight2", torch.ones(3))|m§.register_parameter("q", None)»
t§ = m§($T).detach()
o§ = [m§.training, sorted(m§._buffers), len(m§), [p.requires_grad for p in m§.parameters()]]
--
m§.b = torch.zeros(3)
m§ = nn.Sequential(nn.Linear(3, 3))
m§.train()
del m§.flag
== custom module methods
class Odd§(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
    def __getattr__(self, name):
        if name == "virtual":
            LOG.append(name)
            return 3
        return super().__getattr__(name)
    def __setattr__(self, name, value):
        if name == "logged":
            LOG.append(value)
        super().__setattr__(name, value)
    def __call__(self, *args, **named):
        LOG.append("call")
        return super().__call__(*args, **named)
    def forward(self, v):
        self.logged = $I
        return v * self.virtual + self.w
m§ = Odd§()
--
t§ = m§($T).detach()
--
m§.virtual = 5
Odd§.virtual = 4
Odd§.__call__ = nn.Module.__call__
m§.w = nn.Parameter(torch.zeros(3))
del m§.w
Odd§.__setattr__ = nn.Module.__setattr__
== parametrized
class Double§(nn.Module):
    k = 2
    def forward(self, w):
        LOG.append("parametrize")
        return w * self.k
lin§ = nn.Linear(3, 3)
torch.nn.utils.parametrize.register_parametrization(lin§, "weight", Double§())
--
«t§ = lin§($T).detach()|with torch.nn.utils.parametrize.cached(): t§ = (lin§($T) + lin§($T)).detach()»
o§ = [torch.nn.utils.parametrize.is_parametrized(lin§), type(lin§).__name__]
--
torch.nn.utils.parametrize.remove_parametrizations(lin§, "weight")
Double§.k = 3
lin§.parametrizations.weight.original.data.mul_(2)
torch.nn.utils.parametrize.register_parametrization(lin§, "weight", Double§())
== functional call
lin§ = nn.Linear(3, 3)
--
t§ = torch.func.functional_call(lin§, {{"weight": W, "bias": torch.ones(3) * n}}, ($T,))
o§ = lin§.weight.sum()
--
lin§.weight.data.zero_()
lin§.bias = None
== optimizer
lin§ = nn.Linear(3, 3)
opt§ = torch.optim.«SGD(lin§.parameters(), lr=0.1)|SGD(lin§.parameters(), lr=0.1, momentum=0.9)|Adam(lin§.parameters(), lr=0.1)|AdamW(lin§.parameters())|Adagrad(lin§.parameters())|RMSprop(lin§.parameters())»
--
opt§.zero_grad(«|set_to_none=False»)
loss§ = lin§($T.detach()).square().mean()
loss§.backward()
opt§.step()
t§ = $T + loss§.detach()
o§ = [len(opt§.state), opt§.param_groups[0]["lr"]]
--
opt§.param_groups[0]["lr"] = 0.5
lin§.weight.requires_grad_(False)
opt§.state.clear()
lin§.weight.grad = torch.ones(3, 3)
opt§.param_groups[0]["params"].pop()
opt§.add_param_group({{"params": [X1]}})
opt§.register_step_post_hook(lambda *a: LOG.append("stepped"))
opt§ = torch.optim.SGD(lin§.parameters(), lr=0.01)
opt§.param_groups[0]["weight_decay"] = 0.1
opt§.load_state_dict(opt§.state_dict())
== backward hooks
lin§ = nn.Linear(3, 3)
lin§.register_full_backward_hook(lambda m, gi, go: LOG.append("full"))
--
lin§($T.detach()).sum().backward()
t§ = $T + lin§.weight.grad.mean()
--
lin§._backward_hooks.clear()
lin§.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
lin§.zero_grad()
lin§.weight.register_hook(lambda g: g * 3)
lin§.weight.register_post_accumulate_grad_hook(lambda p: LOG.append("acc"))
"""
