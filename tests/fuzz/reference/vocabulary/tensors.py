"""Tensors: what may be asked of them, what they share, and what may change of them between calls."""

SUBJECTS = """
S§ = «torch.arange(6.0).reshape(2, 3)|torch.arange(6.0).reshape(3, 2).t()|torch.ones(3).expand(2, 3)|torch.arange(12.0).reshape(4, 3)[1:3]|torch.ones(2, 3, requires_grad=True)|torch.ones(2, 3, requires_grad=True) * 2|nn.Parameter(torch.ones(2, 3))|torch.ones(2, 3, dtype=torch.complex64).conj()|torch.ones(2, 3, dtype=torch.complex64).conj().imag|torch._neg_view(torch.ones(2, 3))|torch.zeros(0, 3)|torch.tensor(2.0)|torch.ones(2, 3, dtype=torch.float16)|torch.ones(2, 3, dtype=torch.int64)|torch.ones(2, 3, dtype=torch.bool)|torch.ones(2, 3, dtype=torch.complex64)|torch.ones(2, 3, dtype=torch.float64)|torch.empty(2, 3, device="meta")|torch.inference_mode()(torch.ones)(2, 3)|torch.ones(2, 3).as_subclass(Sub§)|nn.Buffer(torch.ones(2, 3))|torch.ones(2, 3, dtype=torch.bfloat16)|torch.ones(2, 1, 3).squeeze(1)|torch.ones(2, 3).to_sparse()|torch.arange(6.0).as_strided((2, 3), (1, 1))|nn.Parameter(torch.ones(2, 3), requires_grad=False)»
"""
_WORLDS = """
S§ = torch.arange(6.0).reshape(2, 3)
S§ = torch.arange(6.0).reshape(3, 2).t()
S§ = torch.ones(2, 3, requires_grad=True)
S§ = torch.ones(2, 3, requires_grad=True) * 2
S§ = torch._neg_view(torch.ones(2, 3))
S§ = torch.ones(2, 3, dtype=S§.dtype)
S§ = S§.double()
S§ = S§.detach()
S§ = S§.clone()
S§ = S§[:1]
S§ = S§.view_as(S§)
S§ = torch.inference_mode()(torch.ones)(2, 3)
S§ = nn.Parameter(torch.ones(2, 3))
S§ = torch.ones(2, 3).as_subclass(Sub§)
S§ = torch.resolve_neg(S§)
S§ = torch.resolve_conj(S§)
S§ = torch.conj(S§)
S§.add_(1)
S§.requires_grad_(True)
S§.requires_grad_(False)
S§.tag = $I
del S§.tag
S§.grad = torch.ones(2, 3)
S§.grad = None
S§.resize_(1, 3)
S§.data = torch.zeros(2, 3)
S§.data = torch.zeros(4, 3)[::2]
S§.set_(torch.ones(6))
S§.retain_grad()
S§.register_hook(lambda g: g)
S§.share_memory_()
S§.t_()
S§.unsqueeze_(0)
S§.zero_()
S§.names = ("a", "b")
S§.untyped_storage().resize_(100)
Sub§.on = $I
Other§ = S§
Other§ = S§.view(-1)
Other§ = S§.clone()
"""
QUESTIONS = (
    "S§.data_ptr() == 0|S§.data_ptr() == Other§.data_ptr()|S§.is_contiguous()|S§.stride()|"
    "S§.storage_offset()|S§._version|S§.is_conj()|S§.is_neg()|S§.is_inference()|S§.is_leaf|"
    "S§.requires_grad|S§.grad_fn is None|S§.grad is None|S§.retains_grad|S§._backward_hooks is None|"
    "isinstance(S§, torch.FloatTensor)|isinstance(S§, torch.LongTensor)|isinstance(S§, torch.Tensor)|"
    "isinstance(S§, nn.Parameter)|isinstance(S§, torch.DoubleTensor)|isinstance(S§, nn.Buffer)|"
    "isinstance(S§, (int, torch.BoolTensor))|S§.type()|type(S§).__name__|type(S§) is torch.Tensor|"
    "S§.is_floating_point()|S§.is_complex()|str(S§.dtype)|S§.dtype is torch.float32|S§.element_size()|"
    "S§.nbytes|S§.untyped_storage().nbytes()|S§.untyped_storage().size()|S§.is_shared()|S§.is_pinned()|"
    "S§.has_names()|S§.names|S§.__dict__|hasattr(S§, 'tag')|getattr(S§, 'tag', 0)|'tag' in S§.__dict__|"
    "S§ is Other§|id(S§) == id(Other§)|hash(S§) == hash(Other§)|S§ in {Other§: 1}|"
    "any(S§ is v for v in [Other§])|S§.is_set_to(Other§)|S§.is_same_size(Other§)|S§._is_view()|"
    "S§._base is None|S§._base is Other§|S§.output_nr|S§.is_sparse|S§.layout is torch.strided|"
    "S§.device.type|S§.get_device()|S§.is_cpu|S§.is_meta|S§.ndim|S§.dim()|S§.numel()|S§.shape|"
    "list(S§.size())|len(S§) if S§.dim() else 0|S§.is_signed()|S§.dim_order()|S§.itemsize|"
    "torch.result_type(S§, 1)|torch.can_cast(S§.dtype, torch.int32)|torch.is_tensor(S§)|"
    "torch.is_floating_point(S§)|torch.is_complex(S§)|torch.numel(S§)|torch.is_conj(S§)|"
    "torch.is_inference(S§)|torch.is_same_size(S§, Other§)|S§.contiguous() is S§|S§.to(torch.float32) is S§|"
    "S§.float() is S§|S§.detach() is S§|S§.data is S§|S§.T.is_contiguous()|S§.cpu() is S§|S§.view_as(S§) is S§|"
    "S§.untyped_storage().data_ptr() == Other§.untyped_storage().data_ptr()|S§.storage_type().__name__|"
    "S§.resolve_conj() is S§|S§.resolve_neg() is S§|S§.expand_as(S§) is S§|S§.real is S§|"
    "S§.is_contiguous(memory_format=torch.channels_last) if S§.dim() == 4 else 0|S§.mT.shape|"
    "S§.__class__.__name__|S§.is_quantized|S§.is_nested|S§.is_mkldnn|S§.is_cuda|callable(S§)|"
    "isinstance(S§, collections.abc.Sized)|isinstance(S§, collections.abc.Hashable)|"
    "isinstance(S§, collections.abc.Iterable)|torch.is_storage(S§)|"
    "torch.overrides.is_tensor_like(S§)|torch.promote_types(S§.dtype, torch.int8)|S§.volatile|"
    "S§._is_zerotensor()|S§.requires_grad and S§.is_leaf|S§.untyped_storage().is_shared()|"
    "S§.untyped_storage().resizable()|S§.untyped_storage()._cdata == Other§.untyped_storage()._cdata|"
    "torch.equal(S§, S§)|S§.grad_fn.name() if S§.grad_fn else 0|S§.is_xla|S§.__len__ is not None|"
    "S§.stride(0) if S§.dim() else 0|torch.typename(S§)|str(S§)|repr(S§.shape)|f'{S§.sum()}'|bool(S§.sum() > 0)|"
    "S§._has_symbolic_sizes_strides|torch._C._functorch.is_batchedtensor(S§)|S§.__sizeof__() > 0|"
    "torch.utils.data.default_convert(1)|S§.cdouble().is_conj()|S§.get_device() == -1|S§._grad is None|"
    "S§.is_coalesced() if S§.is_sparse else 0|torch.is_nonzero(S§.sum())|S§.is_distributed()|S§.name|"
    "torch.nn.parameter.is_lazy(S§)|torch.is_neg(S§) if hasattr(torch, 'is_neg') else 0|S§.grad_dtype|"
    "S§._post_accumulate_grad_hooks is None|S§.data.requires_grad|S§.imag.is_neg() if S§.is_complex() else 0"
)
_SUB = """\
class Sub§(torch.Tensor):
    on = 1
"""
TEXT = f"""
== tensor question
{_SUB}{SUBJECTS.strip()}
Other§ = «S§|torch.ones(2, 3)|S§.detach()|S§»
--
o§ = «{QUESTIONS}»
t§ = $T + 1
--{_WORLDS.rstrip()}
== branch on a tensor question
{_SUB}{SUBJECTS.strip()}
Other§ = «S§|torch.ones(2, 3)|S§.detach()»
--
if «{QUESTIONS}»:
    t§ = $T + 1
else:
    t§ = $T * 2
--{_WORLDS.rstrip()}
== question of an argument
{_SUB}Other§ = X0
def ask§(S§):
    return «{QUESTIONS}»
--
o§ = ask§(x)
t§ = $T + 1
--
X0 = torch._neg_view(torch.ones(2, 3))
X0 = torch.inference_mode()(torch.ones)(2, 3)
X0 = torch.ones(2, 3).as_subclass(Sub§)
X0 = nn.Parameter(torch.ones(2, 3))
X0 = torch.ones(2, 3, dtype=torch.float64)
X0.tag = 1
X0.requires_grad_()
X1.grad = torch.ones(3)
Other§ = X1
== question of a result
{_SUB}Other§ = X0
--
S§ = «$T.t()|$T[:1]|$T.expand(2, *$T.shape)|$T.detach()|$T * X1|$T.to(torch.complex64).conj()|$T.to(torch.complex64).conj().imag|$T.double()|$T > 1|$T.clone()|$T.reshape(-1)|torch.ones(3)|$T.view_as($T)|$T.sum()|nn.Parameter(torch.ones(2, 3))|$T.data|$T.long()|$T.contiguous()|torch.empty(0)|torch.tensor([1.0])»
o§ = «{QUESTIONS}»
t§ = $T + 1
--
X1.requires_grad_(False)
X0.tag = 2
== used with a subject
{_SUB}{SUBJECTS.strip()}
--
o§ = «S§ * 2|S§.sum()|S§ + 1|S§.abs()|S§.t() if S§.dim() == 2 else S§|S§.float()|S§.clone()|S§[:1] if S§.dim() else S§|S§|S§.detach()|torch.stack([S§, S§])|S§.real|S§.contiguous()|S§ == S§|S§.mean() if S§.is_floating_point() else S§|[S§, S§]|S§.reshape(-1)|torch.zeros_like(S§)|S§.view_as(S§)|S§.T|S§.resolve_neg()|S§.to(torch.float32)|torch.empty_like(S§).shape|S§.new_ones(2)|S§.sort(-1)[0]»
t§ = $T + 1
--{_WORLDS.rstrip()}
== in place on a global
{_SUB}S§ = «torch.arange(6.0).reshape(2, 3)|torch.arange(6.0).reshape(3, 2).t()|torch.ones(4, 3)[::2]|torch.ones(6)[:6].view(2, 3)»
Other§ = «S§|S§[0]|S§.view(-1) if S§.is_contiguous() else S§[1]|S§.detach()|S§.t()»
--
S§.«add_($N)|mul_(2)|copy_($T[:1])|zero_()|clamp_(0, 2)|relu_()|fill_($N)|sub_(1)|t_()|unsqueeze_(0).squeeze_(0)|resize_(2, 3)|index_fill_(0, torch.tensor([0]), 5)|masked_fill_(S§ > 1, 0)|transpose_(0, 1)|detach_()|requires_grad_(False)|set_(torch.ones(2, 3))|swapaxes_(0, 1)|__setitem__(0, 4.0)|data.add_(1)|detach().mul_(2)|view_as(S§).add_(1)|square_()|cumsum_(0)|bernoulli_(1.0)|uniform_(0, 0)»
o§ = [Other§.sum(), S§._version > 0, S§.shape, S§.stride()]
t§ = $T + S§.mean()
--
S§ = torch.ones(2, 3)
Other§ = S§
S§ = Other§
S§.add_(1)
Other§ = S§.clone()
== aliasing results
--
base§ = $T.clone()
o§ = «[base§, base§[0] if base§.shape[0] else base§]|[base§, base§.t()]|[base§, base§]|[base§.view(-1), base§]|[base§.detach(), base§]|list(base§.unbind(1))|list(base§.split(1, 1))|[base§.expand(2, *base§.shape)]|[base§.as_strided((2,), (1,))] if base§.numel() > 1 else 0|base§.diagonal()|[x, x]|[x.view_as(x)]|[x[:]]|[x.t(), x]|base§.unfold(1, 2, 1)|[base§.contiguous(), base§]|[base§.reshape(-1), base§]|x.data|x.detach()|[W, W.t()]|base§.squeeze()|base§.to(torch.float32)|list(base§)|base§.chunk(3, 1)|base§.movedim(0, 1)|(base§.real, base§)|base§.narrow(1, 0, 2)|torch.broadcast_tensors(base§, torch.ones(1, 3))|torch.view_as_complex(base§[:, :2].contiguous())»
«base§.add_(1)|base§.mul_(2)|pass|x.detach()»
t§ = base§ + 1
== writes through views
--
base§ = $T.clone()
«base§[0:1] = 5|base§[:, 1] += 1|base§.t()[0].zero_()|base§.view(-1)[:1].add_(3)|base§[base§ > 2] = 0|base§.diagonal().fill_(7)|base§.unbind(1)[0].mul_(2)|base§.data.add_(1)|base§.detach().add_(1)|torch.add(base§, 1, out=base§)|base§.as_strided((1,), (1,)).add_(1) if base§.numel() else None|base§[..., None].sub_(1)|base§.split(1, 1)[0].copy_(base§[:, 1:2])|base§.index_add_(0, torch.zeros(base§.shape[0], dtype=torch.long), base§.clone()) if base§.shape[0] else None|base§.set_(torch.ones(2, 3))|base§.resize_(1, 3)|torch.sin(base§, out=base§)|base§.unfold(1, 2, 2).zero_()|base§.scatter_(1, torch.zeros(base§.shape[0], 1, dtype=torch.long), 9.0)|base§.put_(torch.tensor([0]), torch.tensor([3.0])) if base§.numel() else None|base§.masked_scatter_(base§ > 1, torch.ones(20))|base§.swapaxes_(0, 1)»
t§a = base§.clone() if base§.shape == $T.shape else $T + 1
t§ = t§a + 0
o§ = base§
== in place on an argument
--
with torch.no_grad():
    x.«add_(1)|mul_(2)|zero_()|data.add_(1)|detach().add_(1)|clamp_(max=2)|copy_(x * 2)|view_as(x).add_(1)|t().add_(1)|relu_()|unsqueeze_(0).squeeze_(0)»
t§ = x + $T
o§ = x._version > 0
== overlapping
pool§ = torch.arange(12.0)
S§ = pool§[:6].view(2, 3); T§ = pool§[3:9].view(2, 3)
--
S§.«add_(1)|mul_(2)|copy_(T§.clone())»
o§ = [T§.sum(), S§ + T§]
t§ = $T + T§.mean()
«T§.add_(S§.clone())|pass|torch.add(S§.clone(), T§.clone(), out=S§)»
--
T§ = pool§[6:].view(2, 3)
S§ = T§
T§ = T§.clone()
pool§.zero_()
== attributes on tensors
S§ = torch.ones(2, 3)
--
o§ = [hasattr(S§, "scale"), getattr(S§, "scale", 1), hasattr($T, "mark")]
S§.«count = $N|scale = $T|mark = [n]|__dict__["z"] = n|requires_grad = False»
y§ = $T * 2
y§.mark = n
t§ = y§ + y§.mark
o§a = y§
--
S§.scale = 4
del S§.scale
S§ = torch.ones(2, 3)
torch.Tensor.mark = 3
S§.__dict__.clear()
== tensor subclass
class Sub§(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        LOG.append(getattr(function, "__name__", "f"))
        return super().__torch_function__(function, types, args, kwargs or {{}})
    def «double_it|relu|__add__»(self, *rest):
        return self * 2
S§ = torch.ones(2, 3).as_subclass(Sub§)
--
o§ = «S§ + 1|S§.relu()|torch.sin(S§)|type(S§ * 2).__name__|S§.as_subclass(torch.Tensor) + 1|isinstance(S§ + 1, Sub§)|S§.sum()|S§.double_it() if hasattr(S§, "double_it") else 0|torch.stack([S§, S§])»
t§ = $T + S§.mean().as_subclass(torch.Tensor)
--
S§ = torch.ones(2, 3)
Sub§.relu = lambda self: self - 5
Sub§.__torch_function__ = torch._C._disabled_torch_function_impl
S§.add_(1)
== tensor-like class
class Like§:
    def __init__(self, v):
        self.v = v
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        LOG.append(function.__name__)
        return function(*[a.v if isinstance(a, Like§) else a for a in args], **(kwargs or {{}}))
like§ = Like§(torch.ones(3))
--
t§ = torch.«add|mul|sub»($T, like§)
--
like§.v = torch.zeros(3)
like§ = torch.ones(3)
== constructors
--
o§ = torch.«zeros(2)|full((2,), n)|arange(abs(n) + 1)|tensor([n, 1])|tensor(n)|as_tensor([1.0, n])|ones(2, dtype=torch.int32)|linspace(0, n, 3)|eye(2)|empty(0)|tensor([[True]])|scalar_tensor(n)|complex(torch.ones(2), torch.ones(2))|from_numpy(__import__("numpy").ones(2)) if False else torch.ones(1)|tril_indices(2, 2)|zeros(abs(n), 2)|ones_like($T, dtype=torch.float64)|empty_strided((2, 2), (1, 2)).stride()|sparse_coo_tensor([[0]], [1.0], (2,)).to_dense()|asarray([1, n])|frombuffer(bytearray(8), dtype=torch.int32)|tensor($T.shape)|tensor(W)|arange(0, 3, 1.0)»
t§ = $T + n
== sizes
--
k§ = «$T.shape[0]|$T.size(0)|len($T)|$T.numel()|$T.shape.numel()|$T.stride(0)|$T.ndim|$T.size()[-1]|$T.shape[0] // 2|$T.numel() % 4|$T.nbytes»
o§ = «list(range(k§))|$T.shape == (2, 3)|$T.new_zeros(k§).shape|k§ > 2|[0] * k§|str($T.shape)|{{k§: 1}}|k§ is 2|hash(k§)|torch.Size([k§, 1])|isinstance(k§, int)|type(k§).__name__|f"{{k§}}"|k§ == n|$T.shape[0] == $T.shape[1]|isinstance($T.shape, tuple)|math.sqrt(k§)|torch.arange(k§)|bin(k§)»
t§ = $T * k§ if k§ «> 1|== 2|!= 0|% 2» else $T + k§
== memory formats
image§ = torch.arange(16.0).reshape(1, 2, 2, 4)
--
y§ = image§«|.contiguous(memory_format=torch.channels_last)|.permute(0, 2, 3, 1)|.to(memory_format=torch.channels_last)» * 2
o§ = [y§, y§.stride(), y§.is_contiguous(memory_format=torch.channels_last), torch.empty_like(y§).stride()]
t§ = $T + y§.mean()
--
image§ = image§.contiguous(memory_format=torch.channels_last)
image§ = image§[:, :, :, ::2]
image§ = image§.transpose(2, 3)
image§ = image§.expand(2, 2, 2, 4)
== dtypes
S§ = torch.ones(2, 3«|, dtype=torch.float64|, dtype=torch.int32|, dtype=torch.bool|, dtype=torch.float16|, dtype=torch.uint8|, dtype=torch.complex64»)
--
o§ = «S§ + n|S§ * 1.5|S§.sum()|S§ / 2|S§ // 2 if not S§.is_complex() else 0|(S§ + $T).dtype is torch.float32|S§.to($T.dtype)|S§.type(torch.float64)|S§ == 1|S§.mean(dtype=torch.float64) if not S§.is_complex() else 0|torch.cat([S§, S§])|~S§ if S§.dtype == torch.bool else 0|S§.view(torch.uint8).shape if S§.element_size() == 1 else 0|S§ ** 2|S§.cumsum(0)|S§ * True|S§.prod()|-S§ if S§.dtype != torch.bool else 0|S§.new_tensor([n])|torch.where(S§ == 1, S§, 0)»
t§ = $T + 1
--
S§ = S§.double()
S§ = S§.to(torch.int64)
S§ = S§ == 1
S§ = S§.half()
== swapped
S§ = torch.ones(2, 3); T§ = torch.zeros(2, 3)
alias§ = S§
--
«torch.utils.swap_tensors(S§, T§)|S§.data = T§|S§.data = T§.clone()|S§.set_(T§)|S§.swap = 1|S§, T§ = T§, S§|S§.untyped_storage().copy_(T§.untyped_storage())|S§.untyped_storage().fill_(0)»
o§ = [S§.sum(), T§.sum(), S§.data_ptr() == T§.data_ptr()]
t§ = $T + 1
--
S§.data = torch.full((2, 3), 4.0)
torch.utils.swap_tensors(S§, T§)
T§.add_(1)
== data pointers
cell§ = {{}}
--
y§ = $T * 2
o§ = «$T.data_ptr() == y§.data_ptr()|x.data_ptr() == X0.data_ptr()|x.data_ptr() in cell§|y§.view(-1).data_ptr() == y§.data_ptr()|x.data_ptr() != 0|W.data_ptr() % 16|y§.untyped_storage().data_ptr() == y§.data_ptr()|X0[1].data_ptr() - X0.data_ptr()|x is X0|W.data_ptr() == W.data_ptr()|x.untyped_storage() == X0.untyped_storage() if False else id(x) == id(X0)|x is not X1»
«cell§[x.data_ptr()] = 1|pass|cell§[id(W)] = 1»
t§ = y§ + len(cell§)
--
cell§.clear()
X0 = X0.view(-1).view(2, 3)
"""
