"""The page that `python -m braze report` writes of a trace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from braze.__main__ import main
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.print_guards import format_guard
from braze.kept_texts import KeptTexts
from braze.report.html.graphs import graphs_of_compile
from braze.report.html.kernels import TimeTable, slowest
from braze.report.html_report import html_report

SECTIONS = "timeline source breaks graphs guards recompiles fusion kernels memory ranks".split()
VOID = frozenset("meta link br".split())

# Values of tensors are made by arithmetic, so that no literal of the source spells them.
_SCRIPT = """
import torch, braze
weight = torch.full((64, 64), 617.25) * 2
small = torch.full((2,), 617.25) * 2

class Holder:
    def __init__(self):
        self.data = torch.full((3,), 617.25) * 2

holder = Holder()

def model(x):
    y = torch.relu(x @ weight) * 2 + small.sum()
    y = y + y * holder.data.sum()
    print("<script>alert(1)</script>")
    return torch.softmax(y, -1)

f = braze.compile(model)
f(torch.ones(3, 64, requires_grad=True)).sum().backward()
f(torch.ones(5, 64))
with braze.set_stance("force_eager"):
    f(torch.ones(3, 64))
"""


class Page(HTMLParser):
    """What a page consists of; an end tag that ends nothing fails."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())


def read(text: str) -> Page:
    page = Page()
    page.feed(text)
    assert not page.open, page.open
    return page


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRAZE_TRACE", str(folder / "trace"))
        subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
    assert main(["report", str(folder / "trace")]) == 0
    return folder / "trace"


def lines_of(folder: Path) -> list[dict[str, Any]]:
    (written,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in written.read_text().splitlines()]


def test_the_page_has_every_section(traced: Path) -> None:
    text = (traced / "report.html").read_text()
    page = read(text)
    assert set(SECTIONS) <= {*page.ids} and len({*page.ids}) == len(page.ids)
    targets = [v[1:] for n, v in page.attributes if n == "href" and v and v.startswith("#")]
    assert targets and {*targets} <= {*page.ids}
    assert "holds no tensor values" in text
    for said in ("(unchanged)", "as captured", "remove_dead_nodes", "TENSOR_MATCH", "fused_",
                 "input-output", "requires_grad mismatch", "resident", "force_eager"):  # fmt: skip
        assert said in text, said


def test_each_line_says_what_became_of_it(traced: Path) -> None:
    text = (traced / "report.html").read_text()
    rows = re.findall(r'</span><span class="(\w*)">\1</span><span class="\1">(.*)</span>', text)
    states = {line.strip(): state for state, line in rows}
    assert states["y = torch.relu(x @ weight) * 2 + small.sum()"] == "compiled"
    assert states["print(&#34;&lt;script&gt;alert(1)&lt;/script&gt;&#34;)"] == "broke"
    assert states["return torch.softmax(y, -1)"] == "compiled"


def test_the_program_cannot_write_markup(traced: Path) -> None:
    text = (traced / "report.html").read_text()
    assert "<script>alert" not in text and read(text).tags.count("script") == 1


def test_nothing_is_fetched(traced: Path) -> None:
    text = (traced / "report.html").read_text()
    assert "http://" not in text and "https://" not in text and "url(" not in text
    page = read(text)
    assert not {"link", "img", "iframe", "object"} & {*page.tags}
    assert not [name for name, _ in page.attributes if name == "src" or name.startswith("on")]
    assert "default-src 'none'" in text


def test_no_values_of_tensors_are_written(traced: Path) -> None:
    for path in traced.iterdir():
        assert "1234.5" not in path.read_text(), path


def test_guards_print_no_elements() -> None:
    held = torch.full((2,), 1234.5)
    for expected in (held, [held], (1, held), {"a": held}, held.numpy(), [[held.numpy()]]):
        assert "1234.5" not in format_guard(Guard(None, GuardKind.ID_MATCH, expected))


def test_passes_show_what_they_changed(traced: Path) -> None:
    graphs = [g for line in lines_of(traced) for g in graphs_of_compile(line, lambda text: True)]
    steps = [step for graph in graphs for step in graph["steps"]]
    assert any(step["changed"] and step["lines"] for step in steps if step["name"])
    assert any(not step["changed"] for step in steps)
    assert all(graph["steps"][0]["name"] == "" for graph in graphs)
    assert {title for line in lines_of(traced) for title in line["graphs"]} == {
        graph["title"] for graph in graphs
    }


def test_kernels_and_calls_of_aten_have_times(traced: Path) -> None:
    (written,) = traced.glob("kernel_times_*.json")
    times = json.loads(written.read_text())
    lines = lines_of(traced)
    assert {*times["graphs"]} == {title for line in lines for title in line["graphs"]}
    assert times["rates"]["memory"] > 0 and times["rates"]["products"] > 0
    table = TimeTable([times])
    rows = [row for line in lines for row in table.rows(line)]
    kernels = [row for row in rows if row["bytes"] is not None]
    calls = [row for row in rows if row["bytes"] is None]
    assert len(kernels) == sum(len(line["kernels"]) for line in lines)
    assert all(k["calls"] >= 1 and 0 < k["least"] <= k["total"] for k in kernels)
    assert any(k["share"] > 0 and k["limit"] == "memory" for k in kernels if k["is_whole"])
    assert any(call["name"].startswith("aten.") for call in calls), rows
    text = (traced / "report.html").read_text()
    assert "of roofline" in text and read(text).tags.count("meter") == len(
        [k for k in kernels if k["share"] is not None]
    )


def test_shares_are_of_the_nearer_limit() -> None:
    def share(moved: int, operations: int, least: float, is_whole: bool = True) -> tuple[Any, str]:
        kernel = {"name": "k", "graph": "g", "bytes": moved, "operations": operations,
                  "places": ["a.py:3"], "is_whole": is_whole}  # fmt: skip
        line = {"process": 1, "graphs": ["g"], "kernels": [kernel]}
        rates = {"memory": 1000.0, "products": 100.0, "threads": 1}
        graphs = {"g": [["k", 2, 3 * least, least]]}
        times = {"process": 1, "rates": rates, "graphs": graphs}
        (row,) = TimeTable([times]).rows(line)
        assert (row["calls"], row["total"]) == (2, 3 * least)
        assert "k of a.py:3" in "\n".join(slowest([line], [times]))
        return row["share"], row["limit"]

    assert share(500, 0, 1.0) == (0.5, "memory")
    assert share(500, 80, 1.0) == (0.8, "products")
    assert share(900, 80, 2.0) == (0.45, "memory")
    assert share(500, 0, 1.0, is_whole=False) == (None, "")


def test_texts_are_bounded() -> None:
    texts = KeptTexts(lambda program: "x" * 60, limit=100)
    texts.keep("guards", "y" * 70)
    texts.keep_program("rewrite", "", [])
    texts.keep_program("rewrite", "one", [], changed=False)
    texts.keep_program("rewrite", "two", 30_000 * [None])
    texts.keep("guards", lambda: str(1 // 0))
    found = [(text.name, len(text.text), text.changed, text.left_out) for text in texts.texts]
    assert found[:2] == [("", 70, True, 0), ("", 0, True, 60)]
    assert found[2:4] == [("one", 0, False, 0), ("two", 0, True, 30_000)]
    assert texts.texts[4].left_out  # it says ZeroDivisionError, which does not fit either


def test_a_page_is_bounded(traced: Path) -> None:
    line = lines_of(traced)[0]
    huge = {"kind": "output_code", "text": 700_000 * "<", "stage": "", "name": "",
            "changed": True, "left_out": 0}  # fmt: skip
    page = html_report([{**line, "texts": 4 * [huge]} for _ in range(300)], [])
    read(page)
    assert len(page) < 5_000_000 and "700000 characters are left out" in page
    assert "The 200 longest are shown" in page


def test_jinja2_is_named_where_it_lacks(
    traced: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", str(traced)]) == 1
    assert "pip install 'braze[report]'" in capsys.readouterr().err
