"""What every bench ends with: one JSON line, as the last one, for machines."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

QUICK = os.environ.get("QUICK", "") not in ("", "0")
"""A run of less than a minute with the same figures, for a first look."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * percent // 100) - 1))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Lowest and highest of repeated runs."""
    return {"low": round(min(values), 2), "high": round(max(values), 2)}


def report(
    bench: str, figures: Mapping[str, float], peers: Mapping[str, float], conditions: Mapping[str, Any], holds: bool
) -> None:
    """Print the last line; `holds` says whether our own bars hold."""
    line = {"bench": bench, "figures": figures, "peers": peers, "conditions": conditions, "holds": holds}
    print(json.dumps(line), flush=True)
