"""What the record keeps of an attempt's end: blame, exclusion, smaller values, a question, the guard's report, the spend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from botocore.stub import Stubber

from nightshift.adapters.hyperpod import SageMakerHyperPod
from nightshift.contract.events import Stage
from nightshift.contract.job import GuardReport, OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.core.causes import EndCause
from nightshift.core.errors import TransientError
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting
from nightshift.steps.transitions import provision, submit
from nightshift.steps.view import view_run
from tests.builders import outcome, progress
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, SESSION, World, step

KEYS = RunKeys("maze-1")
NCCL = "NCCL error of ip-i-w2: ncclRemoteError"


class Replacer:
    """HyperPod's side of a replacement; it may refuse or not answer."""

    def __init__(self, answer: str | Exception = "") -> None:
        self.asked: list[tuple[str, ...]] = []
        self._answer = answer

    def __call__(self, instances: Sequence[str]) -> dict[str, str]:
        self.asked.append(tuple(instances))
        if isinstance(self._answer, Exception):
            raise self._answer
        return dict.fromkeys(instances, self._answer)


def decided(world: World, awaiting: Awaiting = Awaiting.ATTEMPT) -> str | None:
    world.later(60)
    reply = world.look(awaiting, f"token-{world.now():%H%M%S%f}")
    return None if reply is None else reply.decision


def fails(world: World, attempt: int, cause: OutcomeCause, message: str = "as it was", saved: int = 20) -> str | None:
    """The attempt ends with a new checkpoint each time, and the next one is on its way where one follows."""
    world.jobs.states[f"maze-1-a{attempt}"] = JobView(JobState.FAILED)
    told = outcome(
        cause,
        attempt=attempt,
        message=message,
        step=saved + 5,
        resumed_step=max(0, saved - 20),
        saved_step=saved,
        exit_code=75,
    )
    world.put(KEYS.outcome(attempt), told)
    decision = decided(world)
    if decision == "recover" and world.run().question is None:
        assert decided(world, Awaiting.FENCE) == "ready"
        provision(world.ports, step("provision"))
        assert decided(world, Awaiting.CLUSTER) == "ready"
        submit(world.ports, step("submit"), BUCKET)
    return decision


def trail(world: World) -> list[tuple[str, str]]:
    return [(line.what, line.detail) for line in world.runs.audit_trail("maze-1", 200)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", ("replacement asked for", "i-w2")),
        ("InvalidInstanceStatus: it is Pending", ("replacement refused", "i-w2: InvalidInstanceStatus: it is Pending")),
    ],
    ids=["accepted", "refused"],
)
def test_an_instance_that_is_blamed_twice_is_excluded_and_replaced_once_where_that_is_allowed(
    world: World, answer: str, said: tuple[str, str]
) -> None:
    replacer = Replacer(answer)
    world.hyperpod.replace = replacer  # type: ignore[method-assign]
    running(world, recovery={"replace_nodes": True})
    assert fails(world, 1, OutcomeCause.NCCL_FAILURE, NCCL) == "recover"
    assert (world.run().blamed, world.run().excluded, replacer.asked) == (("i-w2",), (), [])
    assert fails(world, 2, OutcomeCause.NCCL_FAILURE, NCCL, saved=40) == "recover"
    assert (world.run().excluded, replacer.asked) == (("i-w2",), [("i-w2",)])
    assert fails(world, 3, OutcomeCause.NCCL_FAILURE, NCCL, saved=60) == "recover"
    assert (world.run().excluded, replacer.asked) == (("i-w2",), [("i-w2",)])
    assert said in trail(world)
    assert [a.node for a in world.runs.attempts("maze-1")[:3]] == ["i-w2"] * 3


def test_hyperpod_that_does_not_answer_must_not_hold_up_a_recovery_and_nothing_is_replaced_unasked(
    world: World,
) -> None:
    world.hyperpod.replace = replacer = Replacer(TransientError("hp", "no answer"))  # type: ignore[method-assign]
    running(world, recovery={"replace_nodes": True})
    assert [fails(world, n, OutcomeCause.NCCL_FAILURE, NCCL, saved=20 * n) for n in (1, 2)] == ["recover"] * 2
    assert len(replacer.asked) == 1 and world.run().excluded == ("i-w2",)
    assert "no answer" in dict(trail(world))["replacement refused"]


def test_without_permission_a_node_is_excluded_and_must_not_be_replaced(world: World) -> None:
    world.hyperpod.replace = replacer = Replacer()  # type: ignore[method-assign]
    running(world)
    assert [fails(world, n, OutcomeCause.NCCL_FAILURE, NCCL, saved=20 * n) for n in (1, 2)] == ["recover"] * 2
    assert world.run().excluded == ("i-w2",) and replacer.asked == []


def test_out_of_memory_goes_on_once_with_the_smaller_values_and_the_record_says_with_which(world: World) -> None:
    running(world, recovery={"on_out_of_memory": {"gpu_memory_utilization": 0.3}})
    assert fails(world, 1, OutcomeCause.GPU_OUT_OF_MEMORY) == "recover"
    assert world.run().smaller and [a.smaller for a in world.runs.attempts("maze-1")] == [False, True]
    (told,) = [e.sentence for e in world.stages.events if e.stage is Stage.RECOVERING]
    assert "smaller values" in told and "start again" not in told
    assert '"gpu_memory_utilization":0.3' in dict(trail(world))["from here on with smaller values"]
    assert fails(world, 2, OutcomeCause.GPU_OUT_OF_MEMORY, saved=40) == "failed"
    shown = view_run(world.ports, "maze-1", BUCKET)
    assert shown is not None and [line.smaller for line in shown.attempts] == [False, True]


def test_a_full_filesystem_asks_a_person_and_spends_no_recovery(world: World) -> None:
    running(world)
    assert fails(world, 1, OutcomeCause.STORAGE_FULL) == "recover"
    run = world.run()
    assert run.question is not None and run.question.cause is EndCause.STORAGE_FULL
    assert run.recoveries_without_progress == 0
    stages = [e.stage for e in world.stages.events]
    assert stages.count(Stage.ASKING) == 1 and Stage.RECOVERING not in stages, "it does not go on by itself"
    assert decided(world, Awaiting.FENCE) is None, "nothing is started before the answer"
    assert world.jobs.submits == ["maze-1-a1"]


def test_what_the_guard_did_is_in_the_attempts_record_while_it_runs_and_what_it_did_not_do_is_not_told(
    world: World,
) -> None:
    running(world)
    assert world.runs.attempts("maze-1")[0].guard is None
    report = GuardReport(
        floor=20, pointer_before=None, resumed_step=10, checked=[20, 10], quarantined=["global_step_20.a1"],
        repaired_pointer=True, notes=["x" * 1_900] * 50,
    )  # fmt: skip
    world.put(KEYS.progress(1), progress(step=26, guard=report))
    assert decided(world) is None
    (kept,) = world.runs.attempts("maze-1")
    assert kept.guard is not None and len(kept.guard.to_json()) < 8_000, "the table holds it"
    shown = view_run(world.ports, "maze-1", BUCKET)
    assert shown is not None
    words = shown.attempts[0].guard
    assert "moved aside global_step_20.a1" in words and "repaired the pointer, which named no step" in words
    assert "went back to step 10, below the saved step 20" in words
    assert [what for what, _ in trail(world)].count("guard of attempt 1") == 1


def test_a_guard_that_found_everything_in_order_must_not_be_told(world: World) -> None:
    running(world)
    report = GuardReport(floor=20, pointer_before=20, resumed_step=20, checked=[20])
    world.put(KEYS.progress(1), progress(step=26, guard=report))
    decided(world)
    shown = view_run(world.ports, "maze-1", BUCKET)
    assert shown is not None and shown.attempts[0].guard == ""
    assert "guard of attempt 1" not in dict(trail(world))


def test_the_view_shows_what_the_run_costs_by_the_prices_of_its_intake(world: World) -> None:
    running(world)
    world.later(3_600)
    shown = view_run(world.ports, "maze-1", BUCKET)
    assert shown is not None and shown.spend is not None
    assert shown.spend.dollars == pytest.approx(shown.spend.dollars_per_hour, rel=0.05)
    assert shown.spend.dollars_per_hour == pytest.approx(36.6024, abs=0.01)


# The real adapter, against botocore's own model of the API


def hyperpod(*answers: dict[str, Any], asked: Sequence[Sequence[str]]) -> SageMakerHyperPod:
    client = SESSION.client("sagemaker")
    stub = Stubber(client)
    for answer, ids in zip(answers, asked, strict=True):
        if "ClientError" in answer:
            stub.add_client_error("batch_replace_cluster_nodes", answer["ClientError"], "said so")
        else:
            stub.add_response(
                "batch_replace_cluster_nodes", answer, {"ClusterName": "hp-cluster", "NodeIds": list(ids)}
            )
    stub.activate()
    return SageMakerHyperPod(client, "hp-cluster")


IDS = [f"i-{n:017x}" for n in range(30)]


def test_replacements_are_asked_for_25_a_call_and_errors_come_by_instance() -> None:
    failed = [
        {"NodeId": IDS[0], "ErrorCode": "InvalidInstanceStatus", "Message": "it is Pending"},
        {"NodeId": IDS[1], "ErrorCode": "InstanceIdNotFound", "Message": "gone"},
        {"NodeId": IDS[2], "ErrorCode": "InstanceIdInUse", "Message": "being replaced"},
    ]
    answers = ({"Successful": IDS[3:24], "Failed": failed}, {"Successful": IDS[25:]})
    told = hyperpod(*answers, asked=[IDS[:25], IDS[25:]]).replace([*IDS, IDS[0]])
    assert told.keys() == set(IDS)
    assert {one for one, why in told.items() if why} == {IDS[0], IDS[24]}
    assert told[IDS[0]] == "InvalidInstanceStatus: it is Pending", "what is gone or at work is no error"
    assert "does not name it" in told[IDS[24]]


def test_an_api_that_refuses_is_an_error_of_each_instance_and_one_that_is_busy_is_transient() -> None:
    refused = hyperpod({"ClientError": "AccessDeniedException"}, asked=[IDS[:1]]).replace(IDS[:1])
    assert "AccessDeniedException" in refused[IDS[0]]
    with pytest.raises(TransientError):
        hyperpod({"ClientError": "ThrottlingException"}, asked=[IDS[:1]]).replace(IDS[:1])
