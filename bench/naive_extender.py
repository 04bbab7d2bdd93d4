"""The extender as one would first write it: every node is asked on every call, every other node's failure is named.

Same program, same books, same arithmetic as ours; only without the memo and with the full answer.
"""

import argparse
import json
import sys
from dataclasses import dataclass

from cluster import facts
from fallow import scheduler
from gpu.placement import Fit, Reason, place
from scheduler import decide, wire
from scheduler.app import Extender


@dataclass(frozen=True)
class NaiveExtender(Extender):
    def filter(self, call: wire.FilterCall) -> tuple[str, bytes]:
        request = facts.read_request(call.pod)
        assert request is not None
        by_name = self.promises.snapshot().by_name
        scoring = decide.scoring_of(self.policy(), self.clock.now())
        answers = {n: place(by_name[n], request, scoring) for n in call.names}
        fits = {n: a.score for n, a in answers.items() if isinstance(a, Fit)}
        best = min(fits, key=lambda n: (-fits[n], n), default="")
        failed = {
            n: (Reason.FITS_NOT_BEST if isinstance(a, Fit) else a.reason).value for n, a in answers.items() if n != best
        }
        answer = {"NodeNames": [best] if best else [], "FailedNodes": failed, "Error": ""}
        return "fits" if best else "none", json.dumps(answer).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    scheduler.add_flags(parser)
    return scheduler.run(parser.parse_args(), NaiveExtender)


if __name__ == "__main__":
    sys.exit(main())
