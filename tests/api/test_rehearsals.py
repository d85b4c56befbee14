"""What a plan says of the rehearsals of its spec."""

from __future__ import annotations

from typing import Any

from nightshift.contract.rehearsal import rehearsal_of
from nightshift.core.run import RunState
from tests.api.support import Http
from tests.builders import spec, spec_json


def planned(http: Http, **changes: Any) -> Any:
    return http.post("/runs/plan", {"spec": spec_json(**changes)}).body.get("rehearsed")


def test_a_plan_names_the_newest_rehearsal_of_exactly_its_parts_and_whether_it_passed(http: Http) -> None:
    assert planned(http) is None
    first, second = rehearsal_of(spec()), rehearsal_of(spec(), 2)
    assert http.post("/runs", {"spec": first.model_dump(mode="json")}).status == 201
    under_way = planned(http)
    assert (under_way["run_id"], under_way["state"], under_way["passed"]) == (first.run_id, "admitted", False)

    http.over(first.run_id, RunState.FAILED)
    assert (planned(http)["state"], planned(http)["passed"]) == ("failed", False)
    http.post("/runs", {"spec": second.model_dump(mode="json")})
    http.over(second.run_id, RunState.SUCCEEDED, attempt=2)
    passed = planned(http, training={"total_steps": 900})
    assert (passed["run_id"], passed["number"], passed["passed"]) == (second.run_id, 2, True)
    assert planned(http, image=spec_json()["image"].replace("0", "1")) is None, "another image was never rehearsed"


def test_a_run_under_a_rehearsals_name_is_refused(http: Http) -> None:
    told = http.post("/runs", {"spec": spec_json(run_id="rehearsal-of-mine")})
    assert (told.status, [one["field"] for one in told.body["errors"]]) == (422, ["run_id"])
