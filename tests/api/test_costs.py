"""What is attributed to whom comes by pages of an index; what HyperPod had is what was seen, and nothing is made up."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest

from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.run import RunState
from nightshift.steps.costs import note_capacity
from tests.api.support import ME, OTHER, Http
from tests.api.test_lists import counting, pages
from tests.builders import NOW
from tests.steps.world import HYPERPOD

HOUR = 3_600
PRICE = 36.6024
"""Of the default topology: one ml.r5d.16xlarge and three ml.g7e.12xlarge."""


def ran(http: Http, run_id: str, hours: float, who: str = ME, **spec: Any) -> None:
    """A run that held its pool for so long, and succeeded."""
    assert http.start(run_id, who=who, **spec).status == 201
    assert http.world.runs.take_lease(http.world.run(run_id), http.world.now())
    http.world.later(hours * HOUR)
    http.over(run_id, RunState.SUCCEEDED)


def costs(http: Http, query: str) -> dict[str, dict[str, float]]:
    """Run -> month -> dollars, of all pages."""
    found = [one for page in pages(http, f"/costs?{query}") for one in page]
    return {one["run_id"]: {m["month"]: m["dollars"] for m in one["months"]} for one in found}


def test_each_run_has_its_dollars_in_the_months_in_which_it_held_nodes(http: Http) -> None:
    assert datetime.fromisoformat("2026-11-30T03:00:00+00:00") == NOW
    ran(http, "before", 2)  # ends at 05:00
    http.start("never")
    ran(http, "over-the-end", 24)  # 05:00 to 05:00 of the next day: 19 hours in November
    http.start("living", project="mazes")
    http.world.runs.take_lease(http.world.run("living"), http.world.now())
    http.world.later(HOUR)

    assert costs(http, "from=2026-11&to=2026-12") == {
        "before": {"2026-11": round(2 * PRICE, 2)},
        "over-the-end": {
            "2026-11": round(19 * PRICE, 2),
            "2026-12": round(round(24 * PRICE, 2) - round(19 * PRICE, 2), 2),
        },
        "living": {"2026-12": round(PRICE, 2)},
    }
    assert costs(http, "from=2026-11").keys() == {"before", "over-the-end"}
    assert costs(http, "limit=50").keys() == {"over-the-end", "living"}, "without a month it is this one"
    for run_id, months in costs(http, "from=2026-11&to=2026-12").items():
        assert round(sum(months.values()), 2) == http.get(f"/runs/{run_id}").body["spend"]["dollars"]


def test_costs_are_asked_for_by_owner_and_project_together(http: Http) -> None:
    ran(http, "mine", 1, project="mazes")
    ran(http, "yours", 1, who=OTHER, project="mazes")
    ran(http, "other", 1, project="chess")
    ran(http, "nobodys", 1)
    [line] = [one for page in pages(http, "/costs?project=chess") for one in page]
    assert (line["owner"], line["project"], line["pool"], line["state"]) == (ME, "chess", "default", "succeeded")
    assert (line["dollars_per_hour"], line["prices_as_of"], line["prices_old"]) == (PRICE, "2025-01-01", True)
    assert costs(http, "project=mazes").keys() == {"mine", "yours"}
    assert costs(http, f"owner={OTHER}").keys() == {"yours"}
    assert costs(http, f"owner={ME}&project=mazes&limit=1").keys() == {"mine"}


def test_a_page_of_costs_reads_a_page_of_its_index_and_the_records_of_what_may_have_cost(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        ran(http, f"run-{number}", 24 * 10)  # from November into February
    made = counting(http, monkeypatch)
    found = pages(http, "/costs?from=2026-12&limit=2")

    assert [one["run_id"] for page in found for one in page] == ["run-3", "run-2", "run-1", "run-0"]
    assert {index for index, _ in made} == {"by_created"} and all(items <= 2 for _, items in made)
    asked: list[int] = []
    batch = http.world.table.meta.client.batch_get_item

    def counted(**request: Any) -> Any:
        asked.append(sum(len(one["Keys"]) for one in request["RequestItems"].values()))
        return batch(**request)

    monkeypatch.setattr(http.world.table.meta.client, "batch_get_item", counted)
    pages(http, "/costs?from=2026-12&limit=2")
    assert sum(asked) == 4, "those that ended before and those that were asked for later are not even read"


def test_a_batch_that_dynamodb_gives_in_parts_is_asked_for_again_and_one_that_it_never_gives_is_told(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(http, "one", 1)
    ran(http, "two", 1)
    batch, refused = http.world.table.meta.client.batch_get_item, [True]

    def half(**request: Any) -> Any:
        [(name, asked)] = request["RequestItems"].items()
        if len(asked["Keys"]) > 1 or refused[0] is None:
            left = {name: {"Keys": asked["Keys"][1:] if refused[0] else asked["Keys"]}}
            asked = {"Keys": asked["Keys"][:1]} if refused[0] else None
            return {**(batch(RequestItems={name: asked}) if asked else {"Responses": {}}), "UnprocessedKeys": left}
        return batch(**request)

    monkeypatch.setattr(http.world.table.meta.client, "batch_get_item", half)
    assert costs(http, "limit=50").keys() == {"one", "two"}
    refused[0] = None  # type: ignore[assignment]
    said = http.get("/costs")
    assert (said.status, said.problem) == (503, "try-again")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=2026-13", "from"), ("from=november", "from"), ("to=2026-1", "to"), ("from=2026-12&to=2026-11", "to"),
        ("from=2026-11%0A", "from"), ("month=2026-11", "month"), (f"owner={'x' * 201}", "owner"), ("limit=0", "limit"),
    ],
)  # fmt: skip
def test_what_is_no_month_and_no_parameter_is_named(http: Http, query: str, field: str) -> None:
    said = http.get(f"/costs?{query}")
    assert (said.status, said.problem, said.body["errors"][0]["field"]) == (400, "bad-request", field)
    assert http.get("/costs?next=bm9uZQ").problem == "bad-page"


def groups(**counts: int) -> HyperPodView:
    types = {"gpu": "ml.g7e.12xlarge", "cpu": "ml.r5d.16xlarge", "strange": "ml.x9.large"}
    found = tuple(GroupCapacity(name, types[name], count, count + 1) for name, count in counts.items())
    return HyperPodView("hp", "InService", found)


def test_the_reconciler_writes_a_change_of_the_instances_down_once(http: Http) -> None:
    ports, log = http.world.ports, http.world.runs
    assert note_capacity(ports.hyperpod, log, "hp", http.world.now())
    for _ in range(3):
        http.world.later(300)
        assert not note_capacity(ports.hyperpod, log, "hp", http.world.now()), "nothing changed: nothing is written"
    http.world.hyperpod.current = groups(gpu=2, cpu=1, strange=1)
    assert note_capacity(ports.hyperpod, log, "hp", http.world.now())
    http.world.later(300)

    [first, second] = http.get("/costs/capacity").body["spans"]
    assert (first["instances"], first["dollars_per_hour"]) == ({"ml.g7e.12xlarge": 3, "ml.r5d.16xlarge": 1}, PRICE)
    assert (first["since"], first["until"]) == ("2026-11-30T03:00:00Z", "2026-11-30T03:15:00Z")
    assert (second["without_price"], second["until"]) == (["ml.x9.large"], "2026-11-30T03:20:00Z")
    assert http.get("/costs/capacity?from=2026-10").body["spans"] == [], "of the time before nothing is known"


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_the_spans_of_capacity_are_the_same_by_whatever_pages_they_come(http: Http, limit: int) -> None:
    for number in range(6):
        http.world.hyperpod.current = groups(gpu=number, cpu=1)
        assert note_capacity(http.world.ports.hyperpod, http.world.runs, "hp", http.world.now())
        http.world.later(9 * HOUR)
    found = [
        one for page in pages(http, f"/costs/capacity?from=2026-11&to=2026-12&limit={limit}", "spans") for one in page
    ]
    assert [one["instances"].get("ml.g7e.12xlarge", 0) for one in found] == [0, 1, 2, 3, 4, 5]
    assert all(before["until"] == after["since"] for before, after in itertools.pairwise(found))
    december = [one for page in pages(http, f"/costs/capacity?from=2026-12&limit={limit}", "spans") for one in page]
    assert december[0]["since"] == "2026-12-01T00:00:00Z" and december[0]["instances"]["ml.g7e.12xlarge"] == 2
    assert december[-1]["until"] == (NOW + timedelta(hours=54)).isoformat().replace("+00:00", "Z")
    assert HYPERPOD.groups, "the played cluster is as it was"
