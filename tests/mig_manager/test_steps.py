"""The step table: asked everything once, then its sentences and its edges one by one."""

from dataclasses import replace

from gpu.node import Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from mig_manager.diagram import BEFORE, TARGET, edges, everything
from mig_manager.steps import STEPS, Apply, Publish, Release, Rest, Rules, Seen, Withhold, next_step
from tests.builders import layout

RULES = Rules(settle_seconds=1, drain_seconds=300, tries=3, retry_seconds=2)
SLICED = Shape(Mode.SLICED, layout("1g.10gb@6"))
WHOLE, SHARED = Shape(Mode.WHOLE), Shape(Mode.SHARED)
WANTED = Wanted(1, SLICED, "for 1 pod that waits for 1g.10gb: default/a", 3)


def seen(shape: Shape = WHOLE, **more: object) -> Seen:
    facts = {"mig": shape.mode is Mode.SLICED, "layout": shape.layout, "complete": True, "advertised": shape}
    return Seen(**{**facts, **more})  # type: ignore[arg-type]


def recut(phase: Phase = Phase.HOLD, **more: object) -> Recut:
    return replace(Recut(1, phase, 100.0, WHOLE, SLICED, fence=3), **more)  # type: ignore[arg-type]


def test_every_phase_that_is_not_final_has_a_step() -> None:
    assert set(STEPS) == {p for p in Phase if not p.final}


def test_nothing_is_applied_while_somebody_is_there() -> None:
    for _, _, sight, (_, act) in everything():
        if isinstance(act, Apply):
            assert not sight.holders
            assert not sight.unstarted
            assert not sight.fault


def test_hardware_is_changed_only_in_apply_and_only_after_the_try_was_counted() -> None:
    for before, _, _, (after, act) in everything():
        if isinstance(act, Apply):
            assert after is not None
            assert after.phase is Phase.APPLY
            assert after.tries >= 1
            assert act.target in (after.target, TARGET, BEFORE)
            assert before is None or before.phase in (Phase.DRAIN, Phase.APPLY)


def test_only_what_the_hardware_is_gets_published() -> None:
    for _, _, sight, (_, act) in everything():
        if isinstance(act, Publish):
            assert sight.is_cut_as(act.target)


def test_the_same_record_and_sight_give_the_same_step_again() -> None:
    for before, wanted, sight, step in everything():
        if before is not None and before.phase is Phase.DONE and step[0] == before:
            assert next_step(before, wanted, sight, Rules(), 1000.0)[0] == before


def test_the_way_of_the_plan() -> None:
    follows = edges()
    for before, after in [
        (Phase.HOLD, Phase.DRAIN),
        (Phase.DRAIN, Phase.APPLY),
        (Phase.DRAIN, Phase.ADVERTISE),
        (Phase.APPLY, Phase.VERIFY),
        (Phase.APPLY, Phase.STUCK),
        (Phase.VERIFY, Phase.ADVERTISE),
        (Phase.ADVERTISE, Phase.DONE),
        (Phase.STUCK, Phase.ADVERTISE),
    ]:
        assert after in follows[before]


def test_hold_lets_the_schedulers_see_then_withholds_then_drains() -> None:
    begun, act = next_step(None, WANTED, seen(), RULES, 100.0)
    assert begun == replace(recut(), message=WANTED.reason)
    assert isinstance(act, Rest)
    assert next_step(begun, WANTED, seen(), RULES, 100.5)[1] == Rest("letting the schedulers see the order")
    assert next_step(begun, WANTED, seen(), RULES, 101.0)[1] == Withhold(SLICED)
    after, _ = next_step(begun, WANTED, seen(withheld=True), RULES, 101.0)
    assert after is not None
    assert after.phase is Phase.DRAIN


def test_a_pod_on_its_way_is_let_through() -> None:
    coming = seen(withheld=True, unstarted=("default/a",))
    after, act = next_step(recut(), WANTED, coming, RULES, 105.0)
    assert act == Release()
    assert after is not None
    assert after.message == "waiting for 1 pod to start: default/a"
    after, act = next_step(recut(Phase.DRAIN), WANTED, coming, RULES, 105.0)
    assert act == Release()
    assert after is not None
    assert after.phase is Phase.HOLD


def test_a_pod_that_never_starts_ends_the_recut() -> None:
    after, act = next_step(recut(), WANTED, seen(unstarted=("default/a",)), RULES, 400.0)
    assert act == Publish(WHOLE)
    assert after is not None
    assert after.rolling_back


def test_drain_says_whom_it_waits_for_and_how_long() -> None:
    busy = seen(withheld=True, holders=("default/a", "default/b"))
    after, act = next_step(recut(Phase.DRAIN), WANTED, busy, RULES, 141.0)
    assert after is not None
    assert after.message == "waiting for 2 pods to leave: default/a, default/b"
    assert act == Rest("waiting for 2 pods to leave: default/a, default/b (41 s of 300)")
    assert next_step(after, WANTED, busy, RULES, 142.0)[0] == after, "no write each second"


def test_out_of_patience_goes_back() -> None:
    busy = seen(withheld=True, holders=("default/a",))
    after, act = next_step(recut(Phase.DRAIN), WANTED, busy, RULES, 400.0)
    assert act == Publish(WHOLE)
    assert after is not None
    assert (after.phase, after.target) == (Phase.ADVERTISE, WHOLE)
    done, _ = next_step(after, WANTED, seen(node_agrees=True), RULES, 401.0)
    assert done is not None
    assert done.phase is Phase.DONE
    assert done.message == "given up: not gone in time: default/a"


def test_too_many_tries_go_back_then_stuck() -> None:
    out = seen(withheld=True)
    record = recut(Phase.APPLY, tries=3)
    back, act = next_step(record, WANTED, replace(out, mig=True), RULES, 200.0)
    assert isinstance(act, Rest)
    assert back is not None
    assert (back.phase, back.target, back.tries) == (Phase.APPLY, WHOLE, 0)
    stuck, _ = next_step(replace(back, tries=3), WANTED, replace(out, mig=True), RULES, 300.0)
    assert stuck is not None
    assert stuck.phase is Phase.STUCK


def test_tries_are_spaced() -> None:
    record = recut(Phase.APPLY, tries=2)
    assert isinstance(next_step(record, WANTED, seen(withheld=True), RULES, 105.9)[1], Rest)
    assert next_step(record, WANTED, seen(withheld=True), RULES, 106.0)[1] == Apply(SLICED)


def test_whole_to_shared_needs_no_hardware_step() -> None:
    wanted = replace(WANTED, shape=SHARED)
    record, acts = None, []
    sight = seen()
    for second in range(8):
        record, act = next_step(record, wanted, sight, RULES, 100.0 + second)
        acts.append(type(act))
        if isinstance(act, Withhold):
            sight = replace(sight, withheld=True)
        if isinstance(act, Publish):
            sight = seen(SHARED, node_agrees=True)
    assert record is not None
    assert record.phase is Phase.DONE
    assert Apply not in acts


def test_a_whole_gpu_in_use_is_not_shared_when_it_leaves_stuck() -> None:
    stuck = recut(Phase.STUCK, target=SHARED)
    assert next_step(stuck, replace(WANTED, shape=SHARED), seen(WHOLE), RULES, 200.0)[1] == Publish(WHOLE)
    assert next_step(stuck, replace(WANTED, shape=SHARED), seen(SHARED), RULES, 200.0)[1] == Publish(SHARED)


def test_an_order_of_an_earlier_planner_is_answered_but_not_obeyed() -> None:
    done = recut(Phase.DONE, fence=5)
    after, act = next_step(done, replace(WANTED, generation=2, shape=SHARED), seen(SLICED), RULES, 200.0)
    assert act == Rest("order refused: it comes from an earlier planner")
    assert after is not None
    assert (after.generation, after.phase, after.target, after.fence) == (2, Phase.DONE, SLICED, 5)
    stuck = recut(Phase.STUCK, fence=5)
    after, _ = next_step(stuck, replace(WANTED, generation=2), seen(), RULES, 200.0)
    assert after is not None
    assert after.phase is Phase.STUCK


def test_an_impossible_order_is_answered_but_not_obeyed() -> None:
    overlapping = Shape(Mode.SLICED, layout("7g.80gb@0", "1g.10gb@6"))
    after, act = next_step(None, replace(WANTED, shape=overlapping), seen(), RULES, 200.0)
    assert after is not None
    assert (after.phase, after.target) == (Phase.DONE, WHOLE)
    assert "does not go together" in act.why  # type: ignore[union-attr]
    after, act = next_step(None, replace(WANTED, shape=replace(SLICED, mode=Mode.WHOLE)), seen(), RULES, 200.0)
    assert act == Rest("order refused: a whole GPU has no slices")


def test_a_new_order_replaces_one_that_has_touched_nothing() -> None:
    newer = Wanted(2, SHARED, "for others", 4)
    for phase in (Phase.HOLD, Phase.DRAIN):
        after, act = next_step(recut(phase), newer, seen(withheld=True), RULES, 150.0)
        assert act == Release()
        assert after is not None
        assert (after.generation, after.phase, after.target, after.since) == (2, Phase.HOLD, SHARED, 150.0)
    after, _ = next_step(recut(Phase.APPLY, tries=1), newer, seen(withheld=True), RULES, 150.0)
    assert after is not None
    assert after.generation == 1
    after, _ = next_step(recut(Phase.DONE), newer, seen(SLICED), RULES, 150.0)
    assert after is not None
    assert (after.generation, after.before) == (2, SLICED)


def test_a_withdrawn_order_ends_what_has_touched_nothing() -> None:
    after, act = next_step(recut(Phase.DRAIN), None, seen(withheld=True), RULES, 150.0)
    assert act == Publish(WHOLE)
    assert after is not None
    assert after.message == "given up: the order was withdrawn"
    assert after.failures == 0


def test_a_lost_gpu_is_waited_for_then_stuck() -> None:
    lost = seen(fault="GPU-0: the GPU has fallen off the bus")
    assert next_step(None, WANTED, lost, RULES, 100.0)[0] is None
    record: Recut | None = recut(Phase.DRAIN)
    for second in range(60):
        record, act = next_step(record, WANTED, lost, RULES, 110.0 + second)
        assert isinstance(act, Rest)
        assert record is not None
        if record.phase is Phase.STUCK:
            break
    assert record is not None
    assert record.phase is Phase.STUCK
    assert "fallen off the bus" in record.message


def test_ids_kept_back_for_whatever_reason_are_published_again() -> None:
    record = recut(Phase.ADVERTISE)
    assert next_step(record, WANTED, seen(SLICED, short=True, node_agrees=True), RULES, 101.0)[1] == Publish(SLICED)


def test_failures_in_a_row_are_counted_and_success_ends_the_count() -> None:
    out = seen(withheld=True)
    tired = recut(Phase.APPLY, tries=3, failures=4)
    back, _ = next_step(tired, WANTED, replace(out, mig=True), RULES, 200.0)
    assert back is not None
    assert back.failures == 5
    done, _ = next_step(replace(back, phase=Phase.ADVERTISE), WANTED, seen(node_agrees=True), RULES, 201.0)
    assert done is not None
    assert (done.phase, done.failures) == (Phase.DONE, 5)
    again, _ = next_step(done, replace(WANTED, generation=2), seen(), RULES, 300.0)
    assert again is not None
    assert (again.phase, again.failures) == (Phase.HOLD, 5)
    good, _ = next_step(replace(again, phase=Phase.ADVERTISE), WANTED, seen(SLICED, node_agrees=True), RULES, 301.0)
    assert good is not None
    assert (good.phase, good.failures) == (Phase.DONE, 0)


def test_who_leaves_stuck_with_the_old_layout_has_failed() -> None:
    for shape, failures in ((WHOLE, 3), (SLICED, 2)):
        after, _ = next_step(recut(Phase.STUCK, failures=2), WANTED, seen(shape), RULES, 200.0)
        assert after is not None
        assert after.failures == failures
    counted = recut(Phase.STUCK, target=WHOLE, failures=2)
    after, _ = next_step(counted, WANTED, seen(WHOLE), RULES, 200.0)
    assert after is not None
    assert after.failures == 2


def test_a_failure_is_counted_once_and_never_forgotten_on_the_way() -> None:
    for before, order, _, (after, _) in everything():
        if before is None or after is None:
            continue
        turned = before.target != before.before and after.target == after.before == before.before
        same_order = after.generation == before.generation
        withdrawn = order is None and before.phase in (Phase.HOLD, Phase.DRAIN)
        if same_order and turned and not withdrawn:
            assert after.failures == before.failures + 1
        elif after.phase is not Phase.DONE and not (same_order and before.rolling_back):
            assert after.failures == before.failures
