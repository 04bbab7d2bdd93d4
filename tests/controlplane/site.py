"""Where one cluster lives: its directory, its record, its network, and the programs it runs."""

import ssl
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.build import Binaries
from tests.controlplane.network import Network
from tests.controlplane.processes import Record, wait


@dataclass(frozen=True)
class Site:
    """`ident` is six hex digits that make its names on this machine unique."""

    directory: Path
    ident: str
    record: Record
    network: Network
    binaries: Binaries

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name.replace('/', '-')}.log"

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        enter: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Start a program in the cluster's network, or behind the nsenter prefix `enter`; its pid."""
        command = [*(enter or self.network.enter), *command]
        return self.record.start(name, command, self.log(name), env=env, cwd=cwd)

    def wait_for(self, name: str, pid: int, ready: Callable[[], bool], seconds: float) -> None:
        """Until the program is ready. Raises ClusterError with the end of its log, at once if it has ended."""
        wait(ready, seconds, name, self.log(name), lambda: self.record.alive(pid))


def answers(url: str) -> bool:
    """A component says that it is well. Its certificate is its own and is not looked at."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    way = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with way.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
