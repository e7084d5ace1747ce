"""A headless Chromium that is driven over a pair of pipes (the Chrome DevTools Protocol), without a driver program."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--remote-debugging-pipe",
)


class Chromium:
    """One page; `errors` are the uncaught exceptions and the console's messages so far."""

    def __init__(self, profile: Path, downloads: Path) -> None:
        assert PROGRAM
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4. Not sh: dash takes no descriptor above 9.
        script = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        words = ["bash", "-c", script, PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(words, pass_fds=(commands, answers), stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target", "Browser")):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._in, 1 << 20)
            assert read, "chromium has ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: Mapping[str, Any]) -> None:
        if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.errors.append(json.dumps(event["params"])[:500])

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> Any:
        """Return the value of an expression as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.02)
        return value

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a page and wait until its script has drawn it."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=page.as_uri() + fragment)
        # While one document replaces another there is no element at all.
        self.until("document.documentElement?.dataset.ready === 'true'")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self._out)
        os.close(self._in)
