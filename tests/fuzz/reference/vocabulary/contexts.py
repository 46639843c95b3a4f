"""Context managers: Python's, and PyTorch's that change what operators do."""

TEXT = """
== grad mode
--
with «torch.no_grad()|torch.enable_grad()|torch.set_grad_enabled(n > 1)|torch.inference_mode()|torch.inference_mode(n > 1)|torch.set_grad_enabled(False)»:
    $BODY
    t§ = $T * 2
    o§ = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), t§.requires_grad, t§.is_inference()]
t§a = $T + «1|X1»
== grad mode as a function
--
«torch.set_grad_enabled(n > 1)|torch.set_grad_enabled(False)|torch._C._set_grad_enabled(True)»
t§ = X1 * $T
o§ = t§.requires_grad
$BODY
torch.set_grad_enabled(True)
--
torch.set_grad_enabled(False)
== grad mode decorator
@torch.«no_grad|enable_grad|inference_mode»()
def decorated§(v):
    return v * X1
--
t§ = decorated§($T)
o§ = [t§.requires_grad, t§.is_inference()]
== autocast
--
with torch.autocast("cpu", dtype=torch.«bfloat16|float16»«|, enabled=n > 1|, cache_enabled=False»):
    t§b = $T @ W
    $BODY
    o§ = [str(t§b.dtype), torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))]
t§ = t§b.float()
== autocast state
--
o§ = [torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu")), torch.is_autocast_cache_enabled()]
t§ = ($T @ W).float()
--
torch.set_autocast_dtype("cpu", torch.float16)
torch.set_autocast_enabled("cpu", True)
torch.set_autocast_enabled("cpu", False)
== saved tensors hooks
packed§ = []
--
with torch.autograd.graph.saved_tensors_hooks(lambda v: (packed§.append(tuple(v.shape)), v)[1], lambda v: v * «1|2»):
    t§a = $T * X1
    t§a = t§a.«sin|exp2|square|sigmoid»()
    $BODY
«t§a.sum().backward() if t§a.requires_grad else None|pass»
t§ = t§a «.detach()|»
o§ = len(packed§)
--
packed§.clear()
X1.grad = None
X1.requires_grad_(False)
== save on cpu
--
with torch.autograd.graph.«save_on_cpu()|disable_saved_tensors_hooks("no")|allow_mutation_on_saved_tensors()»:
    t§ = ($T * X1).square()
o§ = t§.requires_grad
== function mode
class Mode§(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        LOG.append(getattr(function, "__name__", "f"))
        if «function is torch.relu|function is torch.Tensor.add|False»:
            return args[0] * 3
        return function(*args, **(kwargs or {}))
--
with Mode§():
    t§ = torch.relu($T).add(1)
== dispatch mode
from torch.utils._python_dispatch import TorchDispatchMode
class Mode§(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        LOG.append(str(function))
        return function(*args, **(kwargs or {}))
--
with Mode§():
    t§ = $T.«sin|relu»() + 1
== device context
--
with torch.device(«"cpu"|"cpu"|"meta"»):
    made§ = torch.ones(3)
o§ = [made§.device.type, str(torch.get_default_device())]
t§ = $T + 1
--
torch.set_default_device("cpu")
torch.set_default_device("meta")
torch.set_default_device(None)
== rng fork
--
with torch.random.fork_rng():
    torch.manual_seed(«1|n»)
    t§a = $T * torch.rand(3)
    $BODY
t§ = t§a + torch.rand(3)
== sdpa
from torch.nn.attention import SDPBackend, sdpa_kernel
--
with sdpa_kernel(SDPBackend.MATH):
    q§ = $T.reshape(1, 1, -1, 3)
    t§ = F.scaled_dot_product_attention(q§, q§, q§).reshape($T.shape)
== deterministic
--
before§ = torch.are_deterministic_algorithms_enabled()
torch.use_deterministic_algorithms(«n > 1|True|False»)
o§ = [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()]
torch.use_deterministic_algorithms(before§)
t§ = $T + 1
--
torch.use_deterministic_algorithms(True)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.use_deterministic_algorithms(False)
== class context
class Context§:
    depth = 0
    swallow = «True|False»
    def __enter__(self):
        Context§.depth += 1
        return self
    def __exit__(self, kind, error, trace):
        Context§.depth -= 1
        LOG.append(None if kind is None else kind.__name__)
        return self.swallow
--
t§ = $T
try:
    with Context§() as c§«|, Context§() as d§»:
        t§ = t§ * (c§.depth + 1)
        $BRANCH
        «raise ValueError("in")|pass|1 // n|torch.ones(2) + torch.ones(3)»
except (ValueError, ZeroDivisionError, RuntimeError) as error:
    o§ = str(error)
t§ = t§ + Context§.depth
--
Context§.swallow = «True|False»
Context§.depth = $I
Context§.__exit__ = lambda self, *rest: True
Context§.__enter__ = lambda self: types.SimpleNamespace(depth=8)
== contextmanager
@contextlib.contextmanager
def scaled§(v):
    LOG.append("enter")
    stack§.append(v)
    try:
        yield v * 2
    except ValueError:
        LOG.append("error")
        «raise|pass»
    finally:
        stack§.pop()
        LOG.append("leave")
stack§ = []
--
t§ = $T
try:
    with scaled§($N) as s§:
        t§ = t§ * s§
        $BRANCH
        «raise ValueError|pass»
except ValueError:
    o§ = "out"
t§ = t§ + len(stack§)
--
stack§.append($I)
scaled§ = contextlib.nullcontext
== exit stack
class Closing§:
    def close(self):
        LOG.append("close")
--
with contextlib.ExitStack() as stack§:
    stack§.callback(LOG.append, n)
    stack§.enter_context(«torch.no_grad()|contextlib.closing(Closing§())|contextlib.suppress(ValueError)|contextlib.nullcontext(3)»)
    t§ = $T * X1
    $BRANCH
    «stack§.pop_all().close()|raise ValueError|pass|stack§.push(lambda *e: True)»
o§ = torch.is_grad_enabled()
t§ = $T + 1
== suppress
--
t§ = $T
with contextlib.suppress(«ValueError, ZeroDivisionError, AttributeError|Exception|LookupError, Exception»):
    t§ = t§ * 2
    «raise ValueError|1 // 0|LOG.absent|pass»
    t§ = t§ + 1
== redirect
--
out§ = io.StringIO()
with contextlib.redirect_stdout(out§):
    print("inside", n)
    t§ = $T + 1
o§ = out§.getvalue()
== default dtype
--
torch.set_default_dtype(«torch.float64|torch.float32»)
k§ = torch.tensor(1.5).element_size()
t§ = $T + torch.ones(3)«|.float()»
torch.set_default_dtype(torch.float32)
o§ = [str(t§.dtype), str(torch.get_default_dtype())]
t§ = t§.float()
== default dtype outside
--
t§ = ($T + torch.«ones(3)|tensor(1.5)|zeros(3)|arange(3.0)|full((3,), 2.0)|linspace(0, 1, 3)|eye(3)[0]»).float()
o§ = [str(torch.ones(1).dtype), str(torch.get_default_dtype())]
--
torch.set_default_dtype(torch.float64)
torch.set_default_dtype(torch.float32)
torch.set_default_dtype(torch.bfloat16)
== anomaly
--
with torch.autograd.«set_detect_anomaly(True)|detect_anomaly(check_nan=False)|set_multithreading_enabled(False)|profiler.record_function("r")|forward_ad.dual_level()»:
    t§ = $T * 2
    $BODY
    o§ = torch.is_anomaly_enabled()
== parallel flags
--
o§ = [torch.get_num_threads(), «torch.backends.mkldnn.enabled|torch.backends.cudnn.enabled|torch.backends.cuda.matmul.allow_tf32|torch.get_float32_matmul_precision()|torch.backends.cudnn.deterministic|torch.is_warn_always_enabled()|torch.backends.mkldnn.deterministic|torch.backends.cuda.flash_sdp_enabled()|torch.backends.cudnn.benchmark|torch.get_flush_denormal() if hasattr(torch, "get_flush_denormal") else 0|torch.backends.mha.get_fastpath_enabled()|torch.backends.opt_einsum.enabled|torch.is_deterministic_algorithms_warn_only_enabled()|torch.backends.cuda.math_sdp_enabled()|torch.utils.deterministic.fill_uninitialized_memory|torch.get_deterministic_debug_mode()|torch.__future__.get_overwrite_module_params_on_conversion()»]
t§ = $T * torch.get_num_threads()
--
torch.set_num_threads(2)
torch.set_num_threads(1)
torch.backends.cudnn.enabled = False
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.deterministic = True
torch.set_warn_always(True)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_math_sdp(False)
torch.backends.cudnn.benchmark = True
torch.backends.mha.set_fastpath_enabled(False)
torch.backends.opt_einsum.enabled = False
torch.utils.deterministic.fill_uninitialized_memory = False
torch.set_deterministic_debug_mode(1)
torch.backends.mkldnn.set_flags(False)
torch.__future__.set_overwrite_module_params_on_conversion(True)
== thread counts
--
k§ = torch.«get_num_threads|get_num_interop_threads|initial_seed»()
o§ = k§
t§ = $T + (k§ % 7)
«pass|torch.set_num_threads(2)»
--
torch.set_num_threads(3)
torch.set_num_threads(1)
torch.manual_seed(12)
== random tensors
gen§ = torch.Generator().manual_seed($I)
--
t§ = $T * torch.«rand(3)|randn(3)|rand(3, generator=gen§)|randint(1, 5, (3,))|randperm(3)|rand_like($T)|normal(0.0, 1.0, (3,))|bernoulli(torch.full((3,), 0.5))|randint(3, (3,), generator=gen§)»
t§a = F.dropout($T, «0.5|0.0|1.0», training=«True|n > 1|False»)
o§ = «gen§.initial_seed()|torch.initial_seed()|torch.get_rng_state().shape|gen§.get_state().sum() > 0|gen§.device.type|torch.default_generator.initial_seed()»
«pass|torch.manual_seed(n)|gen§.manual_seed(3)|torch.set_rng_state(torch.get_rng_state())|torch.seed() if False else None»
--
torch.manual_seed(5)
gen§.manual_seed(5)
gen§ = torch.Generator()
torch.rand(1)
gen§.set_state(torch.Generator().get_state())
== environment questions
--
o§ = «torch.jit.is_scripting()|torch.jit.is_tracing()|torch.distributed.is_available()|torch.distributed.is_initialized()|torch.cuda.is_available()|torch.backends.mps.is_available()|torch.backends.mkldnn.is_available()|torch.overrides.is_tensor_like(W)|torch.is_storage(W)|torch._C._get_tracing_state() is None|torch.version.cuda is None|torch.cuda.device_count()|torch.backends.openmp.is_available()|torch.overrides.has_torch_function((W,))|torch.backends.cpu.get_cpu_capability() != ""|torch.is_grad_enabled()|torch.utils.data.get_worker_info() is None|torch.accelerator.is_available()|torch.autograd._profiler_enabled()|torch.are_deterministic_algorithms_enabled()»
t§ = $T + 1
--
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
torch.distributed.destroy_process_group() if torch.distributed.is_initialized() else None
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
torch.autograd.profiler.profile().__enter__()
== collectives
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
--
v§ = $T.clone()
out§ = torch.zeros_like(v§)
«dist.all_reduce(v§)|dist.broadcast(v§, 0)|dist.all_gather([out§], v§)|dist.all_gather_into_tensor(out§, v§)|dist.reduce_scatter_tensor(out§, v§)|dist.barrier()|dist.all_to_all_single(out§, v§)|dist.scatter(out§, [v§])|dist.gather(v§, [out§])|work§ = dist.all_reduce(v§, async_op=True); work§.wait()|dist.reduce(v§, 0)|dist.all_reduce(v§, op=dist.ReduceOp.MAX)|dist.broadcast_object_list([n])»
t§ = v§ + out§
o§ = [dist.get_rank(), dist.get_world_size(), dist.is_initialized(), dist.get_backend()]
"""
