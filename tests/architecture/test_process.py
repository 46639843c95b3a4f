"""What a process pays: importing Braze, and one tiny compile."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from unittest import mock

import torch

PROGRAM = """
import json, sys, time
began = time.process_time()
import torch
from torch.utils._python_dispatch import TorchDispatchMode
class NoOperators(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        raise AssertionError(f"importing braze runs {operator}")
before, middle = set(sys.modules), time.process_time()
with NoOperators():
    import braze
share = (time.process_time() - middle) / (middle - began)
after_import = sorted(set(sys.modules) - before)
compiled = braze.compile(lambda x: torch.relu(x + 1).sum(-1), fullgraph=True)
with torch.no_grad():
    assert torch.equal(compiled(torch.ones(3, 4)), torch.full((3,), 8.0))
print(json.dumps([share, after_import, sorted(set(sys.modules) - before)]))
"""

# PyTorch's own compiler, and what it brings: one to four seconds. What only prints, and what serves
# a GPU: memory.
HEAVY = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "sympy",
    "rich",
    "torch.onnx",
    "braze.devices.cuda",
    "braze.codegen.triton",
    "braze.runtime.link.link_cuda",
)


def test_import_and_a_tiny_compile_load_nothing_heavy() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    share, after_import, after_compile = json.loads(run.stdout.splitlines()[-1])
    for modules in (after_import, after_compile):
        heavy = [name for name in modules if name.startswith(HEAVY)]
        assert not heavy, heavy[:10]
    # Both are slower on a slow or busy machine.
    assert share < 1.5, f"importing braze took {share:.2f} of the processor time of torch's import"


def test_seeds_in_tests_format_no_stack() -> None:
    """PyTorch formats one for each kind of device that is absent: `tests/deferred_seeds.py`."""
    with mock.patch.object(traceback, "format_stack", side_effect=AssertionError):
        torch.manual_seed(0)
