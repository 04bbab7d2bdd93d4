"""`make demo` on doubles: the real programs, the real protocols, and exit code 0 only if the story came true."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_story_comes_true_and_is_told(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "fallow", "demo", "--svg", str(picture), "--keep", str(tmp_path / "kept")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "The story came true" in done.stdout
    assert "becomes 1g.10gb@" in done.stdout
    assert "<svg" in picture.read_text()
    assert {p.name for p in (tmp_path / "kept").glob("*.log")} == {
        "scheduler.log",
        "planner.log",
        "agent-node1.log",
        "agent-node2.log",
    }
