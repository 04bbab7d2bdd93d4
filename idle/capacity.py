"""When a measured activity is worth publishing.

Pure. A value carries its age; readers take an old one for busy. So a steady reading is written again before it grows
old, and a changed one at once.
"""

from gpu.node import Activity

MEANINGFUL = 0.05
"""Change of the busy share that readers should hear of."""


def worth_publishing(published: Activity | None, fresh: Activity, stale_after_seconds: float) -> bool:
    if published is None or published.source != fresh.source:
        return True
    if abs(published.busy - fresh.busy) >= MEANINGFUL:
        return True
    return fresh.at - published.at >= stale_after_seconds / 3
