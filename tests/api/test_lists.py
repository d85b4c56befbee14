"""Lists are read by a page of an index and no more, and their tokens are nobody's keys."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.api import AuditLine
from nightshift.contract.layout import RunKeys
from nightshift.core.paging import BadToken, make_token, read_token
from nightshift.core.run import RunState
from nightshift.steps.transitions import admit
from tests.api.support import ME, OTHER, Http
from tests.builders import attempt, summary
from tests.steps.world import BUCKET, step


def many(http: Http, count: int) -> list[str]:
    """Runs asked for a minute apart, oldest first; every third one failed."""
    names = [f"run-{n:02d}" for n in range(count)]
    for n, name in enumerate(names):
        http.world.later(60)
        assert http.start(name, who=ME if n % 2 else OTHER, pool=f"pool-{n % 2}").status == 201
    for name in names[::3]:
        http.over(name)
    return names


def pages(http: Http, address: str, what: str = "runs") -> list[list[Any]]:
    """Every page of a list, by following its tokens."""
    found, token = [], ""
    for _ in range(50):
        said = http.get(f"{address}{token}")
        assert said.status == 200, said.body
        found.append(said.body[what])
        if said.body["next"] is None:
            return found
        token = f"&next={said.body['next']}"
    raise AssertionError("the list does not end")


def counting(http: Http, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(index, items) of every query; a scan is an error."""
    table, made = http.world.table, []
    query = table.query

    def counted(**request: Any) -> Any:
        answer = query(**request)
        made.append((request.get("IndexName", "table"), answer["ScannedCount"]))
        return answer

    def refused(**_: Any) -> Any:
        raise AssertionError("nothing is scanned")

    monkeypatch.setattr(table, "query", counted)
    monkeypatch.setattr(table, "scan", refused)
    return made


def test_open_runs_come_first_and_then_those_that_are_over_newest_first_each(http: Http) -> None:
    names = many(http, 10)
    over = names[::3]
    wanted = [n for n in reversed(names) if n not in over] + over[::-1]
    for limit in (3, 6, 10, 100):
        found = pages(http, f"/runs?limit={limit}")
        assert [line["run_id"] for page in found for line in page] == wanted
        assert all(len(page) <= limit for page in found)


def test_filters_hold_on_every_page_and_together(http: Http) -> None:
    names = many(http, 12)

    def listed(filters: str) -> list[str]:
        return [line["run_id"] for page in pages(http, f"/runs?limit=4&{filters}") for line in page]

    assert sorted(listed("state=failed")) == names[::3]
    assert sorted(listed("pool=pool-1")) == names[1::2]
    assert sorted(listed(f"owner={ME}")) == names[1::2]
    assert sorted(listed(f"owner={ME}&state=admitted&pool=pool-1")) == [n for n in names[1::2] if n not in names[::3]]
    assert listed("owner=nobody") == [] and listed("state=succeeded") == []


PAGES = (
    ("/runs?limit=5", 1, 5), ("/runs?limit=100", 2, 100), ("/runs?state=failed&limit=5", 1, 5),
    (f"/runs?owner={ME}&state=failed&limit=5", 1, 5), ("/pools/pool-0?limit=5", 1, 5),
    ("/runs/run-01/events?limit=1", 1, 1), ("/runs/run-01", 2, 100),
)  # fmt: skip
"""Address, queries at most, items read at most."""


def test_no_call_reads_more_than_a_page(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in many(http, 12):
        if not http.world.run(name).state.is_final:
            admit(http.world.ports, step("admit", run_id=name))
    made = counting(http, monkeypatch)
    for address, queries, most in PAGES:
        made.clear()
        assert http.get(address).status == 200
        assert 0 < len(made) <= queries and sum(items for _, items in made) <= most, (address, made)


def test_a_token_of_another_list_a_raw_key_and_rubbish_are_refused(http: Http) -> None:
    names = many(http, 6)
    token = http.get("/runs?limit=2").body["next"]
    of_events = http.get(f"/runs/{names[1]}/events?limit=1").body
    assert of_events["events"][0]["what"] == "run requested"
    sort_key = http.world.table.get_item(Key={"pk": f"RUN#{names[1]}", "sk": "RUN"})["Item"]["list_sk"]
    for address in (
        f"/runs?limit=2&state=failed&next={token}", f"/runs?limit=2&pool=default&next={token}", "/runs?next=%22",
        f"/runs?next={sort_key.replace('#', '%23').replace('+', '%2B')}", f"/runs?next={token[:-4]}", "/runs?next=a",
        f"/runs/{names[1]}/events?next={token}", f"/pools/pool-1?next={token}", f"/runs/{names[1]}/artifacts?next={token}",
    ):  # fmt: skip
        said = http.get(address)
        assert (said.status, said.problem) == (400, "bad-page"), address
    assert http.get(f"/runs?limit=4&next={token}").status == 200, "another page size is no other list"


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=200))
def test_a_token_gives_back_its_position_for_its_own_list_only(scope: str, other: str, position: str) -> None:
    token = make_token(scope, position)
    assert read_token(scope, token, r"(?s).*") == position
    assert token.isascii() and "=" not in token
    if other != scope:
        with pytest.raises(BadToken):
            read_token(other, token, r"(?s).*")


@given(st.text(max_size=100))
def test_whatever_is_sent_as_a_token_is_refused_in_one_way(text: str) -> None:
    with pytest.raises(BadToken):
        read_token("runs|||", text, r"never")


def test_the_events_of_a_run_come_in_either_order_and_by_pages(http: Http) -> None:
    http.start("maze-1")
    for n in range(7):
        http.world.later(1)
        http.world.runs.audit("maze-1", AuditLine(at=http.world.now(), actor="look", what=f"look {n}"))
    oldest = [e["at"] for page in pages(http, "/runs/maze-1/events?limit=2", "events") for e in page]
    newest = [e["at"] for page in pages(http, "/runs/maze-1/events?limit=3&order=newest", "events") for e in page]
    assert oldest == sorted(oldest) and newest == oldest[::-1] and len(oldest) == 8
    assert http.get("/runs/nobody/events").problem == "no-such-run"


def test_a_pool_shows_who_holds_it_and_who_waits_in_which_order(http: Http) -> None:
    assert http.get("/pools/default").body == {
        "version": 1, "pool": "default", "holder": None, "waiting": [], "next": None
    }  # fmt: skip
    for name, more in {"first": {}, "second": {}, "third": {}, "rush": {"priority": "urgent"}}.items():
        http.world.later(1)
        http.start(name, **more)
        admit(http.world.ports, step("admit", run_id=name))
    assert http.world.runs.take_lease(http.world.run("first"), http.world.now())
    shown = http.get("/pools/default").body
    assert (shown["holder"]["run_id"], shown["holder"]["state"]) == ("first", "provisioning")
    assert [(p["place"], p["run_id"]) for p in shown["waiting"]] == [(1, "rush"), (2, "second"), (3, "third")]
    one_by_one = [p for page in pages(http, "/pools/default?limit=1", "waiting") for p in page]
    assert one_by_one == shown["waiting"], "places count on over pages"
    plan = http.post("/runs/plan", {"spec": _spec("fifth")}).body
    assert (plan["holder"], plan["waiting"], plan["waiting_is_more"]) == ("first", 3, False)
    urgent = http.post("/runs/plan", {"spec": _spec("fifth", priority="urgent")}).body
    assert urgent["waiting"] == 1, "only the urgent one stays before it"


def _spec(run_id: str, **changes: Any) -> dict[str, Any]:
    from tests.builders import spec_json

    return spec_json(run_id=run_id, **changes)


def test_artifacts_are_of_that_run_only_and_their_addresses_work_and_end(http: Http) -> None:
    http.start("maze-1")
    http.start("maze-10")
    for name in ("maze-1", "maze-10"):
        http.world.put(RunKeys(name).eval_summary(1, 0, _fixed()), summary(0, 3))
    found = [a for page in pages(http, "/runs/maze-1/artifacts?limit=1", "artifacts") for a in page]
    assert [a["key"] for a in found] == ["eval/a1/fixed-step-0.json", "spec.json"]
    said = http.get("/runs/maze-1/artifacts")
    assert (said.headers["Cache-Control"], said.body["published"]) == ("no-store", False)
    for one in found:
        assert "X-Amz-Expires=900" in one["url"] and "/runs/maze-1/" in one["url"] and "maze-10" not in one["url"]
        there = http.world.s3.head_object(Bucket=BUCKET, Key=f"runs/maze-1/{one['key']}")
        assert there["ContentLength"] == one["size"]
    assert http.get("/runs/nobody/artifacts").problem == "no-such-run"


def _fixed() -> Any:
    from nightshift.contract.evals import EvalSet

    return EvalSet.FIXED


def test_a_run_shows_its_curve_as_the_evals_that_count(http: Http) -> None:
    http.start("maze-1")
    run = http.world.run()
    assert http.world.runs.claim_attempt(run, attempt(1))
    http.world.runs.save_attempt(http.world.run(), attempt(1, ended_at=http.world.now(), resumed_step=0))
    assert http.world.runs.claim_attempt(http.world.run(), attempt(2, resumed_step=10))
    for step_, solved, n in ((0, 8, 1), (10, 20, 1), (20, 60, 1), (20, 30, 2)):
        http.world.put(RunKeys("maze-1").eval_summary(n, step_, _fixed()), summary(step_, solved, n))
    shown = http.get("/runs/maze-1").body
    assert [(p["step"], p["attempt"], p["solved"]) for p in shown["curve"]] == [(0, 1, 8), (10, 1, 20), (20, 2, 30)]
    assert shown["curve"][2]["low"] < 30 / 64 < shown["curve"][2]["high"]
    thinned = http.world.ports.artifacts.curve("maze-1", 2)
    assert len(thinned) == 2 and (thinned[-1].step, thinned[-1].attempt) == (20, 2), "the newest is always there"


WRONG = (
    "/runs?limit=0", "/runs?limit=101", "/runs?limit=ten", "/runs?limit=%C2%B2", "/runs?state=lost", "/runs?stat=failed",
    "/runs/maze-1/events?order=random", "/pools/Default", f"/runs?owner={'x' * 201}",
)  # fmt: skip


def test_a_parameter_that_is_wrong_is_named(http: Http) -> None:
    for address in WRONG:
        said = http.get(address)
        assert (said.status, said.problem) == (400, "bad-request"), address
        assert said.body["errors"] and said.body["instance"] == address.split("?")[0]


def test_a_record_from_before_the_index_is_read_by_its_id_and_is_in_no_list(http: Http) -> None:
    http.start("maze-1")
    http.world.table.update_item(Key={"pk": "RUN#maze-1", "sk": "RUN"}, UpdateExpression="REMOVE list_pk, list_sk")
    assert http.get("/runs").body["runs"] == []
    assert http.get("/runs/maze-1").status == 200
    http.over("maze-1", RunState.CANCELLED)
    assert [r["run_id"] for r in http.get("/runs").body["runs"]] == ["maze-1"], "its end lists it"


def test_a_table_that_does_not_answer_is_a_reason_to_try_again(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def throttled(**_: Any) -> Any:
        code = {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": "slow down"}}
        raise ClientError(code, "Query")  # type: ignore[arg-type]

    monkeypatch.setattr(http.world.table, "query", throttled)
    said = http.get("/runs")
    assert (said.status, said.problem) == (503, "try-again")
