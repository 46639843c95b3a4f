"""What a program changes of all PyTorch: default devices and dtypes, modes, random numbers."""

from __future__ import annotations

import pytest
import torch

from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


@program
def device_ctx():
    def f(x):
        with torch.device("cpu"):
            return x + torch.zeros(3)

    return f, (tensor(3),)


@program
def default_device_dtype():
    def f(x):
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.zeros(3)
        finally:
            torch.set_default_dtype(torch.float32)

    return f, (tensor(3),)


@program
def fmode():
    from torch.overrides import TorchFunctionMode

    class M(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.sin:
                func = torch.cos
            return func(*args, **(kwargs or {}))

    def f(x):
        y = x * 2
        with M():
            z = torch.sin(y)
        return torch.sin(z)

    return f, (tensor(3),)


@program
def dmode():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class M(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def f(x):
        y = x * 2
        with M():
            z = torch.sin(y)
        return torch.sin(z)

    return f, (tensor(3),), seen


@program
def saved_hooks():
    def f(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            return (x * x).sin()

    return f, (tensor(3).requires_grad_(),)


@program
def threads():
    def f(x):
        n = torch.get_num_threads()
        return x * n

    return f, (tensor(3),)


@program
def seed():
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(3)

    return f, (tensor(3),)


@program
def genr():
    def f(x):
        g = torch.Generator().manual_seed(4)
        return x + torch.rand(3, generator=g)

    return f, (tensor(3),)


@program
def rngstate():
    def f(x):
        s = torch.get_rng_state()
        a = torch.rand(3)
        torch.set_rng_state(s)
        return x + torch.rand(3) - a

    return f, (tensor(3),)


@program
def fork():
    def f(x):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            a = torch.rand(3)
        return x + torch.rand(3) - a

    return f, (tensor(3),)


@program
def sdpa_kernel():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    return f, (tensor(1, 2, 3, 4),)


@program
def warn():
    import warnings

    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("hm", stacklevel=2)
            return x * 2

    return f, (tensor(3),)


@program
def inference():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y, y.is_inference()

    return f, (tensor(3, 2),)


@program
def device_ctx_break():
    def f(x):
        with torch.device("meta"):
            print("", end="")
            y = torch.zeros(3)
        return x * 2, str(y.device), torch.zeros(2).device

    return f, (tensor(3),)


@program
def set_default_device():
    def f(x):
        torch.set_default_device("cpu")
        y = torch.zeros(3)
        torch.set_default_device(None)
        return x * 2, y.device

    return f, (tensor(3),)


@program
def dtype_arg():
    def f(x, d):
        return x.to(d) + torch.zeros(3, dtype=d)

    return f, (tensor(3), torch.float64)


@program
def anomaly():
    def f(x):
        with torch.autograd.set_detect_anomaly(True):
            return x * 2

    return f, (tensor(3),)


@program
def deterministic():
    def f(x):
        torch.use_deterministic_algorithms(True)
        y = x * 2
        torch.use_deterministic_algorithms(False)
        return y

    return f, (tensor(3),)


@program
def nested_device():
    def f(x):
        with torch.device("cpu"), torch.no_grad():
            y = torch.zeros(3)
        return x * 2 + y

    return f, (tensor(3),)


@program
def device_ctx_break_cpu():
    def f(x):
        a = x * 2
        with torch.device("cpu"):
            y = torch.zeros(3) + a
            print("", end="")
            y = y + torch.ones(3)
        return x * 2 + y

    return f, (tensor(3),)


USUAL = [(1, []), (0, [])]
# Programs that compile more or less than one graph at the first call and nothing at the second:
# graphs and breaks of both.
COMPILES = {
    "default_device_dtype": [(1, ["global-state", "global-state"]), (0, [])],
    "fmode": [(1, ["global-state"]), (0, [])],
    "dmode": [(1, ["global-state"]), (0, [])],
    "seed": [(1, ["global-state"]), (0, [])],
    "saved_hooks": [(1, ["global-state", "global-state"]), (0, [])],
    "inference": [(1, []), (0, [])],
    "genr": [(0, ["unseen-callable"]), (0, ["unseen-callable"])],
    "rngstate": [(2, ["global-state", "global-state"]), (0, [])],
    "fork": [(2, ["global-state", "unseen-callable", "global-state", "unseen-callable"]), (0, [])],
    "device_ctx_break": [(2, ["input-output", "input-output", "global-state"]), (0, [])],
    "set_default_device": [(2, ["global-state", "global-state"]), (0, [])],
    "device_ctx_break_cpu": [(4, ["input-output", "input-output", "global-state"]), (0, [])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, USUAL)
