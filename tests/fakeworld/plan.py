"""A seed's faults: what is asked for, what breaks when, and what people do about it."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from nightshift.contract.job import OutcomeCause
from nightshift.core.history import Bounds
from nightshift.core.run import SignalKind
from tests.fakeworld.cloud import Rates
from tests.fakeworld.cluster import GPU, Node
from tests.fakeworld.job import JobFaults
from tests.fakeworld.people import Answers
from tests.fakeworld.world import World

POISONS = (OutcomeCause.CODE_ERROR, OutcomeCause.ENGINE_FAILURE, OutcomeCause.HOST_OUT_OF_MEMORY)
SMALLER = {"on_out_of_memory": {"micro_train_batch_size_per_gpu": 2}}


def prepared(seed: int) -> tuple[World, bool]:
    """A world with this seed's faults in it; True where there are none."""
    plan, world = random.Random(f"plan {seed}"), World(seed)
    quiet = plan.random() < 0.04
    changes = {} if quiet else _asked_for(plan)
    world.at(0.0, lambda: world.request("maze-1", **changes))
    if quiet:
        return world, True
    world.loop.rates = _rates(plan)
    is_long = "training" in changes
    world.fleet.job_faults = JobFaults() if is_long and plan.random() < 0.7 else _job_faults(plan)
    if is_long and plan.random() < 0.3:
        world.at(plan.uniform(1, 900), lambda: world.people.cancel("maze-1"))
    world.fleet.starting = plan.choice(((2.0, 10.0), (2.0, 10.0), (10.0, 60.0)))
    world.fleet.terminating = plan.choice(((0.0, 10.0), (0.0, 10.0), (20.0, 90.0), (200.0, 400.0)))
    world.people.answers = plan.choice(tuple(Answers))
    if plan.random() < 0.12:  # successors: the bound of a parent's history is reached after a few turns
        world.bounds = Bounds(
            looks=plan.choice((10, 30)), shift=timedelta(minutes=20), parent_events=plan.choice((300, 450))
        )
    runs = ["maze-1", *(_others(world, plan) if "queue" not in changes else ())]
    _nodes(world, plan)
    if "queue" in changes:
        _kueue(world, plan)
    for share, name in ((0.2, "ray"), (0.12, "kubernetes")):
        if plan.random() < share:
            _outage(world, name, plan.uniform(0, 600), plan.choice((10, 60, 300, 900)))
    _hands(world, plan, runs)
    return world, False


def _chance(plan: random.Random, share: float, *values: float) -> float:
    return plan.choice(values) if plan.random() < share else 0.0


def _asked_for(plan: random.Random) -> dict[str, Any]:
    changes: dict[str, Any] = {"recovery": {}}
    if plan.random() < 0.5:
        changes["recovery"] |= SMALLER
    if plan.random() < 0.7:
        changes["recovery"]["replace_nodes"] = True
    if plan.random() < 0.1:
        changes["queue"] = "team-queue"
    if plan.random() < 0.03:  # a training that is longer than its wall time
        changes |= {"budgets": {"wall_hours": 0.3}, "training": {"total_steps": 150, "eval_interval": 50}}
    return changes


def _rates(plan: random.Random) -> Rates:
    return Rates(
        crash=_chance(plan, 0.35, 0.02, 0.08, 0.25),
        lost_answer=_chance(plan, 0.3, 0.02, 0.1),
        twice=_chance(plan, 0.35, 0.03, 0.15, 0.5),
        refused=_chance(plan, 0.3, 0.002, 0.01, 0.04),
        slow=_chance(plan, 0.45, 0.01, 0.05, 0.3),
        event_lost=_chance(plan, 0.4, 0.3, 1.0),
        event_twice=_chance(plan, 0.4, 0.3, 0.8),
        event_late=_chance(plan, 0.4, 0.3, 0.9),
    )


def _job_faults(plan: random.Random) -> JobFaults:
    if plan.random() < 0.06:  # everything is proved, yet the job says that it failed; and the next one dies at once
        return JobFaults(lies_at_end=0.8, dies=0.3)
    if plan.random() < 0.06:  # the same end at the same step, for ever
        return JobFaults(poison_step=plan.choice((1, 2, 4, 6)), poison=plan.choice(POISONS))
    return JobFaults(
        dies=_chance(plan, 0.4, 0.03, 0.1, 0.35),
        dies_in_save=_chance(plan, 0.3, 0.1, 0.4),
        hangs=_chance(plan, 0.03, 0.1),
        mute=_chance(plan, 0.03, 0.1),
        stalls_in_save=_chance(plan, 0.03, 0.2),
        silent_start=_chance(plan, 0.02, 0.3, 1.0),
        lies_at_end=_chance(plan, 0.05, 0.5, 1.0),
        ignores_stop=_chance(plan, 0.2, 0.3, 1.0),
        lingers=_chance(plan, 0.1, 0.5, 1.0),
        too_large=_chance(plan, 0.06, 0.5, 1.0),
        always_too_large=plan.random() < 0.3,
    )


def _others(world: World, plan: random.Random) -> list[str]:
    """More runs for the same pool, some of them urgent."""
    names = [f"maze-{n}" for n in range(2, 2 + plan.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3)))]
    for name in names:
        priority = plan.choice(("normal", "urgent"))
        world.at(plan.uniform(0, 400), lambda n=name, p=priority: world.request(n, priority=p))  # type: ignore[misc]
    return names


def _nodes(world: World, plan: random.Random) -> None:
    fleet = world.fleet
    for number in range(plan.choice((0, 0, 1, 2))):
        fleet.nodes.append(Node(f"i-spare{number}", GPU))
    if plan.random() < 0.1:
        plan.choice([n for n in fleet.nodes if n.kind == GPU]).curse = plan.choice((0.3, 1.0))
    for _ in range(plan.choice((0, 0, 1, 1, 2, 3))):
        _kill_a_node(world, plan)
    if plan.random() < 0.06:
        _freeze_a_node(world, plan)
    if plan.random() < 0.06:
        _preempt(world, plan)
    if plan.random() < 0.03:
        world.at(plan.uniform(1, 500), lambda: _fill_the_storage(world))
    for _ in range(plan.choice((0, 0, 0, 3, 12))):
        name = plan.choice(("i-w1", "i-w2", "i-head", "i-stranger"))
        world.at(plan.uniform(0, 700), lambda n=name: world.node_event(SignalKind.NODE_HEALTH, n))  # type: ignore[misc]


def _pick(world: World, head: bool, pick: float) -> Node | None:
    alive = [n for n in world.fleet.nodes if n.dead_at is None and n.frozen_at is None and (n.kind != GPU) is head]
    return alive[int(pick * len(alive))] if alive else None


def _kill_a_node(world: World, plan: random.Random) -> None:
    """Sometimes HyperPod calls it unhealthy some time before."""
    head, pick, warned = plan.random() < 0.2, plan.random(), plan.random() < 0.3
    replaced = None if plan.random() < 0.05 else plan.choice((5.0, 30.0, 120.0, 900.0))

    def kill() -> None:
        node = _pick(world, head, pick)
        if node is None:
            return
        if warned:
            world.fleet.call_unhealthy(node)
        world.at(40.0 if warned else 0.0, lambda: world.fleet.kill_node(node, replaced))

    world.at(plan.uniform(1, 700), kill)


def _freeze_a_node(world: World, plan: random.Random) -> None:
    head, pick = plan.random() < 0.4, plan.random()
    thaws = plan.choice((None, 20.0, 200.0, 1_500.0))
    replaced = None if thaws is not None or plan.random() < 0.2 else plan.choice((120.0, 1_000.0))

    def freeze() -> None:
        node = _pick(world, head, pick)
        if node is not None:
            world.fleet.freeze_node(node, thaws, replaced)

    world.at(plan.uniform(1, 700), freeze)


def _preempt(world: World, plan: random.Random) -> None:
    pick, seconds = plan.random(), plan.choice((60.0, 900.0, 4_000.0))

    def preempt() -> None:
        pods = [p for c in world.fleet.clusters.values() for p in c.pods if p.node is not None and not p.terminating]
        if pods:
            world.fleet.preempt(pods[int(pick * len(pods))], seconds)

    world.at(plan.uniform(1, 700), preempt)


def _fill_the_storage(world: World) -> None:
    world.note("the storage is full")
    world.fleet.storage_full = True


def _kueue(world: World, plan: random.Random) -> None:
    fleet = world.fleet
    fleet.admits_after = plan.choice(((1.0, 20.0), (1.0, 20.0), (3_000.0, 9_000.0)))
    fleet.kueue_refuses = plan.random() < 0.15
    for _ in range(plan.choice((0, 1, 1, 2, 5))):
        back = plan.choice((30.0, 600.0, 7_200.0))
        world.at(plan.uniform(1, 900), lambda b=back: [fleet.evict(c, b) for c in fleet.clusters.values()] and None)  # type: ignore[misc]


def _outage(world: World, name: str, begins: float, seconds: float) -> None:
    def begin() -> None:
        world.note(f"{name} is away for {seconds:.0f} s")
        setattr(world.fleet, f"{name}_down_until", world.time + seconds)

    world.at(begins, begin)


def _hands(world: World, plan: random.Random, runs: list[str]) -> None:
    """People at a console, and people who cancel: at any time, also minutes into a wait for nodes or for an answer."""
    for run_id in runs:
        if plan.random() < 0.06:
            shift, orphan = plan.random() < 0.5, plan.random() < 0.5
            world.at(
                plan.uniform(1, 700),
                lambda r=run_id, s=shift, o=orphan: world.stop_execution(r, s, o),  # type: ignore[misc]
            )
        if plan.random() < 0.07:
            when = plan.uniform(1, plan.choice((30, 700, 700, 4_000)))
            world.at(when, lambda r=run_id: world.people.cancel(r))  # type: ignore[misc]
