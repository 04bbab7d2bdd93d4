"""`make bench`: every bench, one after another, and bench/RESULTS.md rewritten with what they measured."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("filter", "throughput", "agent")


def main() -> int:
    results = {name: measure(name) for name in NAMES}
    (HERE / "RESULTS.md").write_text(page(results))
    return 0


def measure(name: str) -> dict[str, Any]:
    """The last line that the bench prints; what it says besides goes to the terminal."""
    done = subprocess.run([sys.executable, "-m", f"bench.{name}"], stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"bench": name, "figures": {}, "peers": {}, "conditions": {"failed": f"exit code {done.returncode}"}}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def page(results: dict[str, dict[str, Any]]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    lines = [
        "# Results",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit.stdout.strip() or 'unknown'}, `make bench`.",
        "",
    ]
    for name, result in results.items():
        holds = {True: "our bars hold", False: "our bars do not hold"}.get(result.get("holds"), "not measured")
        lines += [f"## {name}", "", f"{holds}.", "", "| what | value |", "|---|---|"]
        for kind in ("figures", "peers", "conditions"):
            lines += [f"| {kind[:-1]} `{key}` | {value} |" for key, value in result.get(kind, {}).items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
