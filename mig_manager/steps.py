"""The re-cut of one GPU as a table: what is recorded, what is seen, and what follows from both.

`next_step` decides; the agent saves the new record and only then does the act. Every act may be repeated, so the next
agent goes on from the record and the hardware after a death at any moment. What must never happen here: an act on a
slice that somebody uses. Pure: the time comes in as an argument.
"""

from collections.abc import Callable
from dataclasses import replace

from gpu.layout import Layout, openings
from gpu.node import Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from mig_manager.moment import Act, Apply, Moment, Publish, Release, Rest, Rules, Seen, Withhold

__all__ = ["STEPS", "Act", "Apply", "Publish", "Release", "Rest", "Rules", "Seen", "Withhold", "next_step"]


Step = tuple[Recut | None, Act]


def next_step(recut: Recut | None, wanted: Wanted | None, seen: Seen, rules: Rules, now: float) -> Step:
    """The record to save, then the act to do. The same record comes back while nothing changes."""
    at = Moment(seen, rules, now)
    if recut is None or recut.phase.final:
        if wanted is not None and (recut is None or wanted.generation > recut.generation):
            return _begin(recut, wanted, at)
        return _at_rest(recut, at)
    if recut.phase in (Phase.HOLD, Phase.DRAIN) and (changed := _changed_mind(recut, wanted, at)):
        return changed
    if seen.fault:
        return _lost(recut, at)
    return STEPS[recut.phase](recut, at)


def hold(recut: Recut, at: Moment) -> Step:
    """Until no pod is on its way to what goes, and its ids are withheld."""
    seen, over = at.seen, at.now - recut.since >= at.rules.drain_seconds
    if seen.unstarted:
        if over:
            return _give_up(recut, f"not started in time: {_names(seen.unstarted)}", at)
        waiting = replace(recut, message=_waiting(seen.unstarted, "start"))
        return waiting, Release() if seen.withheld else Rest(_progress(waiting, at))
    if at.now - recut.since < at.rules.settle_seconds:
        return recut, Rest("letting the schedulers see the order")
    if _removes(recut.target, seen) and not seen.withheld:
        return recut, Withhold(recut.target)
    return _go(recut, Phase.DRAIN, at, f"draining for {recut.target}"), Rest("nothing new can arrive")


def drain(recut: Recut, at: Moment) -> Step:
    """Until API, kubelet and driver all say that nobody is left."""
    seen = at.seen
    if seen.unstarted:
        return _go(recut, Phase.HOLD, at, _waiting(seen.unstarted, "start"), 0), Release()
    if _removes(recut.target, seen) and not seen.withheld:
        return recut, Withhold(recut.target)
    if not seen.holders:
        return _attempt(_go(recut, Phase.APPLY, at, f"cutting {recut.target}", 0), at)
    waiting = replace(recut, message=_waiting(seen.holders, "leave"))
    if at.now - recut.since >= at.rules.drain_seconds:
        return _give_up(recut, f"not gone in time: {_names(seen.holders)}", at)
    return waiting, Rest(_progress(waiting, at))


def apply(recut: Recut, at: Moment) -> Step:
    """Until the hardware is the target; too often in vain, back to the old layout; that too, stuck."""
    seen = at.seen
    if seen.is_cut_as(recut.target):
        return _go(recut, Phase.VERIFY, at, f"cut as {recut.target}"), Rest("looking once more")
    if seen.holders or seen.unstarted:
        return _interrupted(recut, at)
    if _removes(recut.target, seen) and not seen.withheld:
        return recut, Withhold(recut.target)
    if recut.tries < at.rules.tries:
        return _attempt(recut, at) if _may_retry(recut, at) else (recut, Rest(f"trying again soon: {recut.message}"))
    if not recut.rolling_back:
        return _back(recut, at, f"going back to {recut.before}: {recut.message}"), Rest("going back")
    return _stuck(recut, at, f"neither the new nor the old layout can be made: {recut.message}")


def verify(recut: Recut, at: Moment) -> Step:
    """Until the hardware, read once more, is still so."""
    if at.seen.is_cut_as(recut.target):
        return _go(recut, Phase.ADVERTISE, at, _keep(recut, f"advertising {recut.target}")), Publish(recut.target)
    return _go(recut, Phase.APPLY, at, f"found {at.seen.shape} instead"), Rest("the layout did not last")


def advertise(recut: Recut, at: Moment) -> Step:
    """Until the kubelet's offer reaches the Node."""
    seen = at.seen
    if not seen.is_cut_as(recut.target):
        return _go(recut, Phase.APPLY, at, f"found {seen.shape} instead"), Rest("the layout did not last")
    if seen.advertised != recut.target or seen.short:
        return recut, Publish(recut.target)
    if not seen.node_agrees:
        return recut, Rest(f"waiting for the Node to show {recut.target}")
    done = _go(recut, Phase.DONE, at, _keep(recut, f"now {recut.target}"))
    return done if recut.rolling_back else replace(done, failures=0), Rest(f"done: now {recut.target}")


STEPS: dict[Phase, Callable[[Recut, Moment], Step]] = {
    Phase.HOLD: hold,
    Phase.DRAIN: drain,
    Phase.APPLY: apply,
    Phase.VERIFY: verify,
    Phase.ADVERTISE: advertise,
}


def _begin(recut: Recut | None, wanted: Wanted, at: Moment) -> Step:
    if at.seen.fault:
        return recut, Rest(f"cannot begin order {wanted.generation}: {at.seen.fault}")
    fence, failures = (recut.fence, recut.failures) if recut else (0, 0)
    begun = Recut(
        wanted.generation, Phase.HOLD, at.now, at.seen.shape, wanted.shape, 0, wanted.reason, wanted.fence, failures
    )
    if why := "it comes from an earlier planner" if wanted.fence < fence else _unsound(wanted.shape):
        # Answered, not ignored: an order without an answer would keep the GPU closed.
        stuck = recut if recut is not None and recut.phase is Phase.STUCK else None
        answer = stuck or replace(begun, phase=Phase.DONE, target=begun.before)
        refused = replace(answer, generation=wanted.generation, fence=max(fence, wanted.fence))
        return replace(refused, message=f"order refused: {why}"), Rest(f"order refused: {why}")
    return begun, Rest(f"turning {begun.before} into {begun.target} {wanted.reason}".rstrip())


def _at_rest(recut: Recut | None, at: Moment) -> Step:
    if recut is None:
        return None, Rest("as it is")
    if recut.phase is Phase.STUCK:
        return _unstick(recut, at)
    if _has_lost_its_cut(recut.target, at.seen):
        begun = replace(recut, phase=Phase.HOLD, since=at.now, before=at.seen.shape, tries=0)
        return replace(begun, message=f"the GPU came back as {at.seen.shape}"), Rest("cutting it again")
    return recut, Rest(recut.message or "as it is")


def _has_lost_its_cut(target: Shape, seen: Seen) -> bool:
    """A reboot or reset takes slices away (and MIG mode on Hopper). Slices that are new here are another's: adopted."""
    if seen.fault or not seen.complete or target.mode is not Mode.SLICED or not target.layout:
        return False
    return set(seen.layout) < set(target.layout)


def _unstick(recut: Recut, at: Moment) -> Step:
    # Whole and shared are one to the hardware: then what the kubelet has been offered decides, for pods may be on it.
    fits = [s for s in (recut.before, recut.target) if at.seen.is_cut_as(s)]
    if not fits:
        return recut, Rest(recut.message)
    shape = at.seen.advertised if at.seen.advertised in fits else fits[0]
    lost = shape == recut.before and not recut.rolling_back
    free = replace(recut, target=shape, failures=recut.failures + lost)
    return _go(free, Phase.ADVERTISE, at, f"no longer stuck: the GPU is {shape}", 0), Publish(shape)


def _changed_mind(recut: Recut, wanted: Wanted | None, at: Moment) -> Step | None:
    """Nothing has been touched yet, so a new order replaces the old one, and a withdrawn one ends it."""
    if wanted is None:
        if at.seen.fault:
            return None
        after, act = _give_up(recut, "the order was withdrawn", at)
        return replace(after, failures=recut.failures), act  # nothing has failed
    if wanted.generation <= recut.generation or wanted.fence < recut.fence or _unsound(wanted.shape):
        return None
    other = replace(
        recut, generation=wanted.generation, fence=wanted.fence, phase=Phase.HOLD, since=at.now, target=wanted.shape
    )
    return replace(other, tries=0, message=wanted.reason), Release()


def _lost(recut: Recut, at: Moment) -> Step:
    """The hardware does not answer: wait for it, some tries long."""
    if recut.tries >= at.rules.tries and _may_retry(recut, at):
        return _stuck(recut, at, at.seen.fault)
    if recut.tries and not _may_retry(recut, at):
        return recut, Rest(f"waiting for the hardware: {at.seen.fault}")
    since = recut.since if recut.tries else at.now
    waiting = replace(recut, tries=recut.tries + 1, since=since, message=at.seen.fault)
    return waiting, Rest(f"waiting for the hardware: {at.seen.fault}")


def _attempt(recut: Recut, at: Moment) -> Step:
    """One more try; counted before it is made, so that a death counts too."""
    if at.seen.is_cut_as(recut.target):
        return replace(recut, phase=Phase.VERIFY, message=f"cut as {recut.target}"), Rest("no hardware step needed")
    return replace(recut, tries=recut.tries + 1), Apply(recut.target)


def _may_retry(recut: Recut, at: Moment) -> bool:
    pause: float = at.rules.retry_seconds * (2**recut.tries - 1)
    return at.now - recut.since >= pause


def _interrupted(recut: Recut, at: Moment) -> Step:
    """Somebody has what should go: nothing is touched while that lasts."""
    people = at.seen.holders or at.seen.unstarted
    if at.now - recut.since < at.rules.drain_seconds:
        waiting = replace(recut, message=_waiting(people, "leave"))
        return waiting, Rest(_progress(waiting, at)) if at.seen.withheld else Withhold(recut.target)
    if recut.rolling_back:
        return _stuck(recut, at, f"not gone in time: {_names(people)}")
    return _back(recut, at, f"going back, not gone in time: {_names(people)}"), Rest("going back")


def _give_up(recut: Recut, why: str, at: Moment) -> tuple[Recut, Act]:
    """Before anything was cut: offer the old layout again. If the hardware is not that any more, make it so."""
    back = _back(recut, at, f"given up: {why}")
    if at.seen.is_cut_as(recut.before):
        return replace(back, phase=Phase.ADVERTISE), Publish(recut.before)
    return replace(back, phase=Phase.APPLY), Rest("going back")


def _back(recut: Recut, at: Moment, message: str) -> Recut:
    """Towards the old layout; counted, so that the planner waits longer before each next order."""
    failures = recut.failures + 1
    return replace(recut, target=recut.before, tries=0, since=at.now, message=message, failures=failures)


def _stuck(recut: Recut, at: Moment, why: str) -> Step:
    stuck = replace(recut, phase=Phase.STUCK, since=at.now, message=f"stuck: {why}")
    return stuck, Rest(stuck.message)


def _go(recut: Recut, phase: Phase, at: Moment, message: str, tries: int | None = None) -> Recut:
    """The next phase. Tries are kept until something new begins, so that no circle goes round for ever."""
    return replace(recut, phase=phase, since=at.now, tries=recut.tries if tries is None else tries, message=message)


def _keep(recut: Recut, message: str) -> str:
    """Why something was given up stays readable to the end."""
    return recut.message if recut.rolling_back and recut.message else message


def _removes(target: Shape, seen: Seen) -> bool:
    """Something that is advertised now goes."""
    return target.mode is not seen.advertised.mode or not set(seen.advertised.layout) <= set(target.layout)


def _unsound(shape: Shape) -> str:
    if shape.mode is not Mode.SLICED and shape.layout:
        return f"a {shape.mode.value} GPU has no slices"
    standing: Layout = ()
    for piece in shape.layout:
        if piece not in openings(standing, piece.profile):
            return f"{piece} does not go together with the other slices of {shape}"
        standing = (*standing, piece)
    return ""


def _waiting(people: tuple[str, ...], what: str) -> str:
    noun = "pod" if all("/" in name for name in people) else "user"
    return f"waiting for {len(people)} {noun}{'' if len(people) == 1 else 's'} to {what}: {_names(people)}"


def _names(people: tuple[str, ...]) -> str:
    return ", ".join(people[:5]) + (f" and {len(people) - 5} more" if len(people) > 5 else "")


def _progress(recut: Recut, at: Moment) -> str:
    return f"{recut.message} ({at.now - recut.since:.0f} s of {at.rules.drain_seconds:.0f})"
