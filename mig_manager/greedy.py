"""The packing without a solver: each request in turn changes as few GPUs as it can, one after another. Pure.

Only used when the solver's bound on work is met before it has any answer; never proven best.
"""

from collections import Counter

from gpu.placement import Want
from mig_manager.problem import Problem, Wish

Choice = list[list[int]]
"""Per group, how many of its GPUs take each of its patterns."""


def greedy(problem: Problem) -> tuple[Choice, int]:
    """A legal choice and the number of requests it serves."""
    state = _State(problem)
    served = sum(state.serve(wish) for wish in problem.wishes for _ in range(wish.count))
    return state.choice, served


class _State:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        # The first pattern is a way to stay as it is.
        self.choice: Choice = [[len(g.gpus), *([0] * (len(g.patterns) - 1))] for g in problem.groups]
        self.spare: dict[str, Counter[Want]] = {pool: Counter() for pool in problem.pools}
        self.budget = problem.budget
        self.members: dict[str, list[int]] = {pool: [] for pool in problem.pools}
        for g, group in enumerate(problem.groups):
            self.members[group.pool].append(g)
            for piece, n in group.patterns[0].offers:
                self.spare[group.pool][piece] += n * len(group.gpus)

    def serve(self, wish: Wish) -> bool:
        """Serve one request of this class from the first pool that can."""
        return any(self._serve_from(pool, wish) for pool in wish.pools)

    def _serve_from(self, pool: str, wish: Wish) -> bool:
        rows = {g: self.choice[g][:] for g in self.members[pool]}
        spare, budget = Counter(self.spare[pool]), self.budget
        while missing := self._missing(pool, wish):
            if not self._change_one(pool, missing):
                for g, row in rows.items():
                    self.choice[g] = row
                self.spare[pool], self.budget = spare, budget
                return False
        for piece, n in wish.pieces:
            self.spare[pool][piece] -= n
        return True

    def _missing(self, pool: str, wish: Wish) -> Counter[Want]:
        return Counter({p: n - self.spare[pool][p] for p, n in wish.pieces if n > self.spare[pool][p]})

    def _change_one(self, pool: str, missing: Counter[Want]) -> bool:
        """Change the GPU that brings most of what is missing for the least cost, without taking spare pieces away."""
        best: tuple[int, int, int, int] | None = None
        for g in self.members[pool] if self.budget else ():
            if not self.choice[g][0] or not self._gives_up(pool, g):
                continue
            for p, pattern in enumerate(self.problem.groups[g].patterns):
                brought = sum(min(n, missing[piece]) for piece, n in pattern.offers) if pattern.cost else 0
                if brought and (best is None or (-brought, pattern.cost) < best[:2]):
                    best = (-brought, pattern.cost, g, p)
        if best is None:
            return False
        _, _, g, p = best
        self.choice[g][0] -= 1
        self.choice[g][p] += 1
        self.budget -= 1
        self.spare[pool].subtract(dict(self.problem.groups[g].patterns[0].offers))
        self.spare[pool].update(dict(self.problem.groups[g].patterns[p].offers))
        return True

    def _gives_up(self, pool: str, g: int) -> bool:
        """What the GPU offers now is still spare, so that changing it takes nothing from a request served before."""
        return all(self.spare[pool][piece] >= n for piece, n in self.problem.groups[g].patterns[0].offers)
