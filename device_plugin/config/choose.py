"""Which of several configurations is this node's: by its label, else the default one. The rules of NVIDIA's
config-manager.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

NAMED = "default"
"""Without label and without a default, a configuration of this name is taken, else the only one there is."""


@dataclass(frozen=True, slots=True)
class NotChosen:
    why: str


def choose(label: str, default: str, texts: Mapping[str, str]) -> str | NotChosen:
    """The name of the configuration in force. `texts` are the files of a mounted ConfigMap by name."""
    there = ", ".join(sorted(texts)) or "none"
    for name, said in ((label, "the node's label nvidia.com/device-plugin.config"), (default, "--config-default")):
        if name:
            return name if name in texts else NotChosen(f"{said} names {name!r}; there are: {there}")
    if NAMED in texts:
        return NAMED
    if len(texts) == 1:
        return next(iter(texts))
    return NotChosen(
        f"no configuration is chosen: label the node nvidia.com/device-plugin.config, or give --config-default; "
        f"there are: {there}"
    )
