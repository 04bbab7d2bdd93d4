"""A real program of ours as a child process: started, listened to, stopped or killed by its own process id."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Program:
    """`with Program("fallow", "scheduler", ...) as program: program.said(r"extender on (\\S+)")`."""

    def __init__(self, *argv: str) -> None:
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._child = subprocess.Popen(
            [sys.executable, "-m", *argv], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def said(self, pattern: str, timeout_seconds: float = 30.0) -> re.Match[str]:
        """The first line of its log that matches; waits for it. Raises AssertionError with the whole log."""
        with self._heard:
            self._heard.wait_for(lambda: self._find(pattern) or self._child.poll() is not None, timeout_seconds)
            match = self._find(pattern)
        assert match is not None, f"never said {pattern!r}; it said:\n" + "\n".join(self.lines)
        return match

    def end(self, number: int = signal.SIGTERM, timeout_seconds: float = 20.0) -> int:
        """Its exit status after this signal."""
        if self._child.poll() is None:
            self._child.send_signal(number)
        status = self._child.wait(timeout_seconds)
        self._ear.join(timeout_seconds)
        assert self._child.stderr is not None
        self._child.stderr.close()
        return status

    def wait(self, timeout_seconds: float = 30.0) -> int:
        return self._child.wait(timeout_seconds)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def _find(self, pattern: str) -> re.Match[str] | None:
        return next((m for line in self.lines if (m := re.search(pattern, line))), None)

    def _listen(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            with self._heard:
                self.lines.append(line.rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()
