"""When a measured activity is worth publishing.

Pure. A value carries its age; readers take an old one for busy. So a steady reading is written again before it grows
old, and a changed one at once.
"""

from gpu.node import Activity

MEANINGFUL = 0.05
"""Change of the busy share that readers should hear of."""
LARGE = 0.25
"""Change that they should hear of at once."""
PAUSE_SECONDS = 5.0
"""Between two writes otherwise: thousands of nodes write, and each write is read by every scheduler."""


def worth_publishing(published: Activity | None, fresh: Activity, stale_after_seconds: float) -> bool:
    if published is None or published.source != fresh.source:
        return True
    change, age = abs(published.busy - fresh.busy), fresh.at - published.at
    if change >= LARGE or (change >= MEANINGFUL and age >= PAUSE_SECONDS):
        return True
    return age >= stale_after_seconds / 3
