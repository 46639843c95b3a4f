"""Scripts in which a process forks, spawns, pickles what is compiled, or ends while it compiles."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

DEADLINE = 240.0  # seconds

# What the scripts share: in a module, since a spawned child imports it.
MODULE = """
import os, torch, braze

@braze.compile
def scaled(x):
    return torch.tanh(x) * 1.5 + 1

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.inner(x)) * 1.5

def graphs():
    return sum(row.graphs for row in braze.status())

class Rows(torch.utils.data.Dataset):
    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = torch.full((3,), float(index))
        with torch.no_grad():
            return scaled(x), self.model(x), os.getpid(), graphs()
"""

LOADED = """
import os, torch, braze, shared

def main():
    torch.manual_seed(0)
    plain = shared.Model()
    model = braze.compile(plain)
    WARM
    rows = shared.Rows(model)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=2, num_workers=2, multiprocessing_context="METHOD"
    )
    workers = set()
    for _ in range(2):
        seen = list(loader)
        assert len(seen) == 3
        for number, (ours, theirs, pids, graphs) in enumerate(seen):
            x = torch.stack([torch.full((3,), float(n)) for n in (2 * number, 2 * number + 1)])
            torch.testing.assert_close(ours, torch.tanh(x) * 1.5 + 1)
            torch.testing.assert_close(theirs, plain(x).detach())
            workers |= set(pids.tolist())
            assert (graphs >= 2).all(), graphs  # compiled there, or before
    assert len(workers) == 4 and os.getpid() not in workers, workers
    print("RIGHT", flush=True)

if __name__ == "__main__":
    main()
"""

PICKLED = """
import copy, io, pickle, subprocess, sys, torch, braze, shared

torch.manual_seed(0)
model = braze.compile(shared.Model())
x = torch.randn(2, 3)
expected = model(x)
copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
buffer = io.BytesIO()
torch.save(model, buffer)
buffer.seek(0)
copies.append(torch.load(buffer, weights_only=False))
before = shared.graphs()
for made in copies:
    assert isinstance(made, shared.Model) and made.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(made(x), expected)
    assert made.inner.weight is not model.inner.weight
assert shared.graphs() == before + len(copies), (before, shared.graphs())
assert pickle.loads(pickle.dumps(shared.scaled)) is shared.scaled
text = '''
import pickle, sys, torch, shared
model, x, expected = pickle.load(sys.stdin.buffer)
torch.testing.assert_close(model(x), expected)
assert shared.graphs() == 1, shared.graphs()
'''
given = pickle.dumps((model, x, expected.detach()))
subprocess.run([sys.executable, "-c", text], input=given, check=True)
print("RIGHT", flush=True)
"""

# The compiler does not end by itself in time. ENDS: how the process does.
ENDED = """
import os, signal, sys, threading, time, torch, braze

compiled = braze.compile(lambda x: torch.tanh(x) * 1.5 + 1)
# What starts the tests in the background may ignore it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)

def call():
    compiled(torch.ones(3))

def wait_for_compiler():
    limit = time.monotonic() + 60
    while not os.path.exists(os.environ["STARTED"]):
        assert time.monotonic() < limit
        time.sleep(0.05)

ENDS
"""

IN_A_THREAD = """
threading.Thread(target=call, daemon=True).start()
wait_for_compiler()
"""

ENDINGS = {
    "main ends": (IN_A_THREAD + 'print("RIGHT", flush=True)', 0),
    "main exits": (IN_A_THREAD + 'print("RIGHT", flush=True)\nsys.exit(3)', 3),
    "an error": (IN_A_THREAD + 'print("RIGHT", flush=True)\nraise ValueError', 1),
    "an interrupt": (
        # CPython loses an interrupt that comes in a weak reference's callback: it is sent again.
        "seen = threading.Event()\n"
        "def interrupt():\n"
        "    wait_for_compiler()\n"
        "    while not seen.is_set():\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        seen.wait(5)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "try:\n"
        "    call()\n"
        "except KeyboardInterrupt:\n"
        "    seen.set()\n"
        '    print("RIGHT", flush=True)\n',
        0,
    ),
    "an exit in a handler": (
        "def leave(*_):\n"
        '    print("RIGHT", flush=True)\n'
        "    sys.exit(4)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "def end():\n"
        "    wait_for_compiler()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "call()\n",
        4,
    ),
}

SLEEPING_COMPILER = """#!/bin/sh
case "$*" in *--version*) exec g++ "$@";; esac
sleep 77 &
echo $! > "$STARTED.part"; mv "$STARTED.part" "$STARTED"
wait
"""


class Ended(NamedTuple):
    """How a script ended: its status, what it printed, and how long it took, in seconds."""

    status: int
    output: str
    errors: str
    seconds: float


def run_script(text: str, folder: Path, more: Mapping[str, str] | None = None) -> Ended:
    """Run a script beside the shared module, with a cache of its own. Raises TimeoutExpired."""
    (folder / "shared.py").write_text(MODULE)
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment |= {"BRAZE_CACHE_DIR": str(folder / "cache"), **(more or {})}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
