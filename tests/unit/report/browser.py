"""A headless browser that tests drive: the DevTools protocol over a pair of pipes, which needs no
package (https://chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-dev-shm-usage --disable-extensions --disable-component-update --disable-sync "
    "--hide-scrollbars --remote-debugging-pipe"
).split()
# The browser reads commands from descriptor 3 and answers on 4.
_LAUNCH = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execv(sys.argv[1], sys.argv[1:])"
SECONDS = 120.0  # for an answer, on a machine that does other things beside


def find_browser() -> str | None:
    """The path of a Chromium."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@final
class Tab:
    """A tab of the browser.

    problems: what its console, its scripts and its network complained of. requests: every address
    that it asked for.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._count, self._session = 0, ""
        self._events: list[Mapping[str, Any]] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError for an error."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while (answer := self._read()).get("id") != self._count:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path) -> float:
        """Open a page; the seconds until it is loaded and drawn."""
        began = time.monotonic()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._read())
        self._events.clear()
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - began

    def run(self, script: str) -> Any:
        """What an expression, or its promise, is. Raises RuntimeError where it throws."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go: "Tab", "Enter" or "Space"."""
        name, code, text = _KEYS[key]
        known = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **known)
        self.send("Input.dispatchKeyEvent", type="keyUp", **known)

    def show_as(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window in CSS pixels, and the user's scheme, "light" or "dark"."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 700)  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], SECONDS)[0]:
                raise RuntimeError("the browser does not answer")
            if not (more := os.read(self._answers, 1 << 16)):
                raise RuntimeError("the browser ended")
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        return found

    def _note(self, event: Mapping[str, Any]) -> None:
        given, method = event.get("params", {}), event.get("method")
        if method == "Page.loadEventFired":
            self._events.append(event)
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Network.loadingFailed"):
            self.problems.append(json.dumps(given))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("warning", "error"):
            self.problems.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(given["args"]))


@contextmanager
def browsing(browser: str, folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile is in the folder; both end with the block."""
    pipes = [_moved(end) for pair in (os.pipe(), os.pipe()) for end in pair]
    reads, commands, answers, writes = pipes
    launch = [sys.executable, "-c", _LAUNCH.format(reads, writes), browser, *_FLAGS]
    process = subprocess.Popen(
        [*launch, f"--user-data-dir={folder / 'profile'}", "about:blank"],
        pass_fds=(reads, writes), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(reads)
    os.close(writes)
    try:
        yield Tab(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        process.terminate()
        process.wait(SECONDS)


_KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Space": (" ", 32, " "),
}


def _moved(end: int) -> int:
    """A descriptor from 16 on in the place of one that may be 3 or 4."""
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(end)
    return moved
