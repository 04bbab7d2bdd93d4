"""Which GPU becomes what, so that most waiting pods find a place and least changes. The door to OR-tools.

Patterns are counted, not requests: how many GPUs of a group take which pattern. Solved level by level: most pods of the
highest priority, then of the next, then the least cost. Same input, same answer: fixed seed, one worker, a bound on
work instead of seconds. If that bound is met before any answer is found, a greedy one is given, and says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from gpu.placement import Want
from gpu.recut import Shape
from mig_manager.greedy import Choice, greedy
from mig_manager.outlook import Key
from mig_manager.patterns import Pattern
from mig_manager.problem import Problem, Wish

WORK_LIMIT = 2.0
"""Deterministic work of one level, in OR-tools' own unit (about a second of one core)."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The GPUs that change and their new shapes. `served` pods of at most `bound`; `proven` when no better exists."""

    shapes: Mapping[Key, Shape] = field(default_factory=dict)
    served: int = 0
    bound: int = 0
    cost: int = 0
    proven: bool = True
    method: str = "cp-sat"

    @property
    def gap(self) -> int:
        return max(0, self.bound - self.served)


def solve(problem: Problem, work_limit: float = WORK_LIMIT) -> Packing:
    """The best packing within `work_limit` per level. Never raises for a problem that has no useful answer."""
    if not problem.groups or not problem.wishes:
        return Packing()
    search = _Search(problem, work_limit)
    served, bound, proven = 0, 0, problem.complete
    for wishes in _levels(problem.wishes):
        level = search.most(wishes)
        if level is None:
            return _fallback(problem)
        served, bound, proven = served + level[0], bound + level[1], proven and level[0] == level[1]
    cheapest = search.cheapest()
    if cheapest is None:
        return _fallback(problem)
    choice = search.choice
    return Packing(_assign(problem, choice), served, bound, _cost(problem, choice), proven and cheapest)


class _Search:
    """One model, solved several times; what a level has reached is kept as a condition for the next."""

    def __init__(self, problem: Problem, work_limit: float) -> None:
        self._problem, self._work_limit = problem, work_limit
        self._model = cp_model.CpModel()
        self._taken = [
            [self._model.new_int_var(0, len(g.gpus), f"g{i}p{j}") for j in range(len(g.patterns))]
            for i, g in enumerate(problem.groups)
        ]
        self._served = {
            (w, pool): self._model.new_int_var(0, wish.count, f"w{w}@{pool}")
            for w, wish in enumerate(problem.wishes)
            for pool in wish.pools
        }
        self._all_variables = [v for row in self._taken for v in row] + list(self._served.values())
        self._rules()
        self.choice: Choice = []

    def most(self, level: tuple[int, ...]) -> tuple[int, int] | None:
        """Most pods served of these wishes, and an upper bound for it; None if no answer was found."""
        total = sum(v for (w, _), v in self._served.items() if w in level)
        if isinstance(total, int):
            return 0, 0
        self._model.maximize(total)
        solver = self._solve()
        if solver is None:
            return None
        reached = round(solver.objective_value)
        self._model.add(total >= reached)
        return reached, int(solver.best_objective_bound + 1e-6)

    def cheapest(self) -> bool | None:
        """Fewest changes with what is served; whether that is proven, None if no answer was found."""
        cost = [p.cost * v for p, v in self._each() if p.cost]
        if not cost:
            return True
        self._model.minimize(sum(cost))
        solver = self._solve()
        return None if solver is None else solver.objective_value - solver.best_objective_bound < 1

    def _rules(self) -> None:
        groups, model = self._problem.groups, self._model
        for group, row in zip(groups, self._taken, strict=True):
            model.add(sum(row) == len(group.gpus))
        changed = [
            v
            for g, row in zip(groups, self._taken, strict=True)
            for p, v in zip(g.patterns, row, strict=True)
            if p.cost
        ]
        model.add(sum(changed) <= self._problem.budget)
        for w, wish in enumerate(self._problem.wishes):
            model.add(sum(v for (i, _), v in self._served.items() if i == w) <= wish.count)
        offered = self._offered()
        for (pool, piece), needs in self._needed().items():
            model.add(sum(needs) <= sum(offered.get((pool, piece), [])))

    def _each(self) -> Iterable[tuple[Pattern, cp_model.IntVar]]:
        for group, row in zip(self._problem.groups, self._taken, strict=True):
            yield from zip(group.patterns, row, strict=True)

    def _offered(self) -> dict[tuple[str, Want], list[cp_model.LinearExprT]]:
        offered: dict[tuple[str, Want], list[cp_model.LinearExprT]] = {}
        for group, row in zip(self._problem.groups, self._taken, strict=True):
            for pattern, taken in zip(group.patterns, row, strict=True):
                for piece, n in pattern.offers:
                    offered.setdefault((group.pool, piece), []).append(n * taken)
        return offered

    def _needed(self) -> dict[tuple[str, Want], list[cp_model.LinearExprT]]:
        needed: dict[tuple[str, Want], list[cp_model.LinearExprT]] = {}
        for (w, pool), served in self._served.items():
            for piece, n in self._problem.wishes[w].pieces:
                needed.setdefault((pool, piece), []).append(n * served)
        return needed

    def _solve(self) -> cp_model.CpSolver | None:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = self._work_limit
        if solver.solve(self._model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        self.choice = [[solver.value(v) for v in row] for row in self._taken]
        self._model.clear_hints()  # type: ignore[no-untyped-call]
        for variable in self._all_variables:
            self._model.add_hint(variable, solver.value(variable))
        return solver


def _levels(wishes: tuple[Wish, ...]) -> Iterable[tuple[int, ...]]:
    for priority in sorted({w.priority for w in wishes}, reverse=True):
        yield tuple(i for i, w in enumerate(wishes) if w.priority == priority)


def _fallback(problem: Problem) -> Packing:
    choice, served = greedy(problem)
    return Packing(
        _assign(problem, choice), served, sum(w.count for w in problem.wishes), _cost(problem, choice), False, "greedy"
    )


def _assign(problem: Problem, choice: Choice) -> dict[Key, Shape]:
    """Names to numbers: of equal GPUs the first ones change."""
    shapes: dict[Key, Shape] = {}
    for group, row in zip(problem.groups, choice, strict=True):
        gpus = iter(group.gpus)
        for pattern, n in zip(group.patterns, row, strict=True):
            for _ in range(n if pattern.cost else 0):
                shapes[next(gpus)] = pattern.shape
    return dict(sorted(shapes.items()))


def _cost(problem: Problem, choice: Choice) -> int:
    return sum(
        p.cost * n for g, row in zip(problem.groups, choice, strict=True) for p, n in zip(g.patterns, row, strict=True)
    )
