"""The report of a training step of GPT-2's shape, opened in a real browser without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braze.__main__ import main
from tests.unit.report.browser import Tab, browsing, find_browser
from tests.unit.report.test_html_report import SECTIONS

BROWSER = find_browser()
SHAPES = {"desktop": (1280, 900), "phone": (390, 844), "small phone": (320, 568)}

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH (apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),
]

_OPEN = "for (const part of document.querySelectorAll('details')) part.open = {};"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the training step."""
    folder = tmp_path_factory.mktemp("traced")
    script = Path(__file__).with_name("training_step.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRAZE_TRACE", str(folder))
        subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def tab(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    assert BROWSER is not None
    with browsing(BROWSER, tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(autouse=True)
def _nothing_wrong(page: Path, tab: Tab) -> Iterator[None]:
    """Whatever a test does: no complaint of the console, and no request but for the page."""
    tab.show_as(*SHAPES["desktop"])
    tab.open(page)
    yield
    assert not tab.problems
    assert {*tab.requests} <= {page.as_uri()}


def test_it_opens_within_two_seconds(page: Path, tab: Tab) -> None:
    assert page.stat().st_size < 5_000_000
    for shape in SHAPES.values():
        tab.show_as(*shape)
        assert min(tab.open(page) for _ in range(3)) < 2.0


def test_every_section_opens(tab: Tab) -> None:
    tab.run(_OPEN.format("false"))
    for name in SECTIONS:
        closed = f"document.getElementById('{name}')"
        before = tab.run(f"{closed}.offsetHeight")
        tab.run(f"{closed}.querySelector('summary').click()")
        assert tab.run(f"{closed}.offsetHeight") > before + 20, name
    graphs = tab.run("document.querySelectorAll('#graphs > details > details').length")
    assert graphs >= 4
    tab.run(_OPEN.format("true"))
    shown = tab.run("[...document.querySelectorAll('details')].filter(d => !d.offsetHeight).length")
    assert shown == 0
    text = tab.run("document.body.innerText")
    for said in ("aten.native_layer_norm.default", "fused_", "(unchanged)", "input-output",
                 "size mismatch", "training_step.py", "of roofline", "resident"):  # fmt: skip
        assert said in text, said


def test_the_graph_of_a_step_is_shown_whole(tab: Tab) -> None:
    """At least one of those that differ in their sizes alone; of the others it says how long they
    are."""
    tab.run(_OPEN.format("true"))
    steps = tab.run("""[...document.querySelectorAll('#graphs details')].filter(
        part => part.querySelector(':scope > summary').innerText == 'as captured'
    ).map(part => part.innerText)""")
    largest = max(steps, key=len)
    assert largest.count("aten.") > 3000 and "output" in largest
    assert len(steps) >= 4


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_cut_or_scrolls_sideways(shape: str, scheme: str, tab: Tab) -> None:
    tab.show_as(*SHAPES[shape], scheme)
    for is_open in ("false", "true"):
        tab.run(_OPEN.format(is_open))
        wide, window = tab.run("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window == SHAPES[shape][0]
    assert tab.run(_CUT) == []


# Parts whose text is wider than they are, and that cannot be scrolled; and numbers, names and
# titles of tables that are broken inside of a word.
_CUT = """(() => {
  const found = [];
  for (const part of document.querySelectorAll('main *')) {
    const style = getComputedStyle(part);
    if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth && style.overflowX == 'hidden')
      found.push('cut: ' + part.innerText.slice(0, 80));
  }
  const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, cell = text.parentElement.closest('th, td');
    if (!cell || cell.className == 'places' || !text.data.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].map(each => Math.round(each.bottom)));
    if (lines.size > 1) found.push('broken: ' + text.data.slice(0, 80));
  }
  return found.slice(0, 10);
})()"""


@pytest.mark.parametrize("scheme", ("light", "dark"))
def test_text_can_be_read(scheme: str, tab: Tab) -> None:
    """Every pair of colours that occurs has a contrast of 4.5 (WCAG 2.2, 1.4.3), and both schemes
    have a page of their own."""
    tab.show_as(*SHAPES["desktop"], scheme)
    tab.run(_OPEN.format("true"))
    pairs = tab.run(_COLOURS)
    assert len(pairs) > 5
    pages = {"light": 1.0, "dark": 0.0}
    assert abs(_luminance(pairs[0]["behind"]) - pages[scheme]) < 0.1
    for pair in pairs:
        dark, light = sorted((_luminance(pair["text"]), _luminance(pair["behind"])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, pair


_COLOURS = """(() => {
  const found = new Map();
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  for (const part of [document.body, ...document.querySelectorAll('body *:not(svg *)')]) {
    if (!part.innerText || !part.getClientRects().length) continue;
    if (part.tagName == 'METER') continue;
    let behind = part;
    while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0)
      behind = behind.parentElement;
    const pair = {text: numbers(getComputedStyle(part).color),
                  behind: numbers(getComputedStyle(behind).backgroundColor)};
    const key = JSON.stringify(pair);
    if (!found.has(key)) found.set(key, {...pair, of: part.innerText.slice(0, 60)});
  }
  return [...found.values()];
})()"""


def _luminance(colour: list[float]) -> float:
    """The relative luminance of an sRGB colour (WCAG 2.2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in colour[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _focused(tab: Tab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        tab.run("""(() => { const part = document.activeElement; return JSON.stringify({
        tag: part.tagName, text: part.innerText.trim(), href: part.getAttribute('href') || '',
        ring: getComputedStyle(part).outlineStyle + getComputedStyle(part).outlineWidth}); })()""")
    )
    return found


def test_it_can_be_used_by_keyboard(tab: Tab) -> None:
    """The tabulator reaches every link, button and summary that is shown, in their order, with a
    ring around them; Enter and Space do what a click does."""
    tab.run(_OPEN.format("false"))
    reached = []
    for _ in range(200):
        tab.press("Tab")
        found = _focused(tab)
        if found["tag"] == "BODY":
            break
        reached.append(found)
    assert [each["tag"] for each in reached] == ["A"] * 10 + ["BUTTON"] * 2 + ["SUMMARY"] * 10
    assert [each["href"][1:] for each in reached[:10]] == SECTIONS
    assert all(each["ring"] == "solid2px" for each in reached), reached
    for _ in range(11 + 3):  # the button, and the third section
        tab.press("Tab")
        if _focused(tab)["text"] == "Open all":
            tab.press("Space")
            opened = "[...document.querySelectorAll('details')].every(part => part.open)"
            assert tab.run(opened)
            tab.run(_OPEN.format("false"))
    assert _focused(tab)["tag"] == "SUMMARY"
    tab.press("Enter")
    assert tab.run("document.activeElement.parentElement.open")
    tab.press("Enter")
    assert not tab.run("document.activeElement.parentElement.open")


def test_links_open_what_they_name(tab: Tab) -> None:
    tab.run(_OPEN.format("false"))
    for _ in range(4):
        tab.press("Tab")
    assert _focused(tab)["href"] == "#graphs"
    tab.press("Enter")
    top = "document.getElementById('graphs').getBoundingClientRect().top"
    tab.run("new Promise(done => setTimeout(done, 50))")
    assert tab.run("document.querySelector('#graphs > details').open")
    assert abs(tab.run(top)) < 900
    tab.run("document.querySelector('#timeline > details').open = true")
    tab.run("document.querySelector('#timeline .row a').click()")
    tab.run("new Promise(done => setTimeout(done, 50))")
    assert tab.run("document.getElementById('compile-1').open")
