"""`python -m braze run`: what a script's child processes compile is Braze's, and counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

_WORK = """
import os
import sys
import torch

@torch.compile
def work(x):
    return (x.sin() * 2 + 1).sum()

def child(rank=0, *rest):
    made = work(torch.arange(6.0))
    assert torch.allclose(made, (torch.arange(6.0).sin() * 2 + 1).sum())
    print("child", os.environ.get("OWN_SITE"))
"""

_WAYS = {
    "spawn": """
import torch.multiprocessing as mp
if __name__ == "__main__":
    mp.spawn(child, nprocs=2)
""",
    "fork": """
import multiprocessing as mp
if __name__ == "__main__":
    each = [mp.get_context("fork").Process(target=child) for _ in range(2)]
    [p.start() for p in each]; [p.join() for p in each]
    assert not any(p.exitcode for p in each)
""",
    "os.fork": """
if __name__ == "__main__":
    for _ in range(2):
        process = os.fork()
        if not process:
            child()
            sys.exit(0)
        assert os.waitpid(process, 0)[1] == 0
""",
    "subprocess": """
import subprocess
if __name__ == "__main__" and sys.argv[1:]:
    child()
elif __name__ == "__main__":
    for _ in range(2):
        subprocess.run([sys.executable, __file__, "again"], check=True)
""",
    "data loader": """
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        child()
        return torch.zeros(1)
if __name__ == "__main__":
    assert len([*DataLoader(Rows(), batch_size=1, num_workers=2)]) == 4
""",
    "torchrun": "",
}


@pytest.mark.parametrize(
    "way",
    [
        *["subprocess", "fork"],
        *[
            pytest.param(way, marks=pytest.mark.nightly)
            for way in ("spawn", "os.fork", "data loader", "torchrun")
        ],
    ],
)
def test_children_are_compiled_and_counted(way: str, tmp_path: Path) -> None:
    text = _WAYS[way] or 'if __name__ == "__main__":\n    child()\n'
    (tmp_path / "script.py").write_text(_WORK + text)
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['OWN_SITE'] = 'ran'\n")
    target = [str(tmp_path / "script.py")]
    if way == "torchrun":
        target = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *target]
    done = subprocess.run(
        [sys.executable, "-m", "braze", "run", *target],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "BRAZE_DISABLE": "0"},
        capture_output=True,
        text=True,
        timeout=500,
        cwd="/",
    )
    assert done.returncode == 0 and "sitecustomize" not in done.stderr, done.stderr
    assert done.stdout.count("child ran") == (4 if way == "data loader" else 2), done.stdout
    said = re.search(r"in (\d) child processes: (\d) graphs of (\d+) operators", done.stderr)
    assert said is not None and said[1] == said[2] == "2" and int(said[3]) >= 6, done.stderr
    assert "Braze: nothing was compiled in this process." in done.stderr


def test_a_child_without_torch_does_not_import_it(tmp_path: Path) -> None:
    plain = "import sys; assert not {'torch', 'braze'} & {*sys.modules}; print('plain')"
    text = f"import subprocess, sys, torch\nsubprocess.run([sys.executable, '-c', {plain!r}])\n"
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "braze", "run", str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "sitecustomize" not in done.stderr  # there is no other one, and no error of it
    assert done.stdout == "plain\n" and "nothing was compiled. " in done.stderr, done.stderr
