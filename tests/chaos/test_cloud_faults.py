"""The faults in front of the local AWS: what they strike, what they leave alone, and how that is told."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest

from local.cloud.faults import ROUTE, WATCHER, Environ, Faults

CREDENTIAL = "AWS4-HMAC-SHA256 Credential={key}/20261101/us-east-1/{service}/aws4_request, SignedHeaders=host"


def request(
    service: str,
    key: str = "test",
    method: str = "PUT",
    path: str = "/b/k",
    target: str = "",
    body: bytes = b"",
    agent: str = "",
) -> Environ:
    environ: Environ = {
        "REQUEST_METHOD": method, "PATH_INFO": path, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body)),
        "HTTP_AUTHORIZATION": CREDENTIAL.format(key=key, service=service), "HTTP_USER_AGENT": f"Boto3 {agent}",
    }  # fmt: skip
    if target:
        environ["HTTP_X_AMZ_TARGET"] = target
    return environ


class Cloud:
    """An application behind the faults that keeps the bodies it got."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.got: list[bytes] = []
        self.timers: list[tuple[float, Any]] = []
        self.delivered: list[str] = []
        self.faults = Faults(
            lambda: self.now, self.slept.append, lambda seconds, work: self.timers.append((seconds, work))
        )
        self._app = self.faults.around(self._serve)
        self._deliver = self.faults.around_delivery(lambda rule, target, event: self.delivered.append(event["id"]))

    def _serve(self, environ: Environ, start: Any) -> list[bytes]:
        self.got.append(environ["wsgi.input"].read())
        start("200 OK", [])
        return [b"fine"]

    def call(self, environ: Environ) -> tuple[int, bytes]:
        status: list[str] = []
        body = b"".join(self._app(environ, lambda code, headers: status.append(code)))
        return int(status[0].split()[0]), body

    def plan(self, *rules: dict[str, Any]) -> tuple[int, Any]:
        status, body = self.call(request("s3", method="POST", path=ROUTE, body=json.dumps(list(rules)).encode()))
        return status, json.loads(body)

    def struck(self) -> list[int]:
        return [one["struck"] for one in json.loads(self.call(request("s3", method="GET", path=ROUTE))[1])]

    def deliver(self, event_id: str, kind: str = "SageMaker HyperPod Cluster Event") -> None:
        self._deliver(None, {}, {"id": event_id, "detail-type": kind})

    def ring(self) -> None:
        """All timers, in the order of their times."""
        for _, work in sorted(self.timers, key=lambda one: one[0]):
            work()


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def test_without_a_plan_every_call_and_event_gets_through(cloud: Cloud) -> None:
    assert cloud.call(request("s3", body=b"x")) == (200, b"fine")
    cloud.deliver("e")
    assert (cloud.got, cloud.delivered) == ([b"x"], ["e"])


def test_a_refused_call_is_not_carried_out_and_gets_the_error_in_its_service_s_own_form(cloud: Cloud) -> None:
    cloud.plan(
        {"what": "call", "services": ["s3"], "status": 429, "code": "SlowDown"},
        {"what": "call", "services": ["dynamodb"], "status": 500, "code": "InternalServerError"},
    )
    status, body = cloud.call(request("s3"))
    assert status == 429 and b"<Code>SlowDown</Code>" in body
    status, body = cloud.call(request("dynamodb", method="POST", target="DynamoDB_20120810.GetItem"))
    assert status == 500 and json.loads(body)["__type"].endswith("#InternalServerError")
    assert cloud.got == []
    assert cloud.struck() == [1, 1]


def test_only_the_asked_caller_service_operation_and_text_are_struck_and_the_body_stays_whole(cloud: Cloud) -> None:
    cloud.plan(
        {"what": "call", "services": ["dynamodb"], "who": "functions", "operation": "Update*", "contains": '"running"'}
    )
    update = {"method": "POST", "target": "DynamoDB_20120810.UpdateItem", "body": b'{"S":"running"}'}
    let_through = [
        request("dynamodb", key="test", **update),
        request("states", key="ASIA", **update),
        request("dynamodb", key="ASIA", **{**update, "target": "DynamoDB_20120810.PutItem"}),
        request("dynamodb", key="ASIA", **{**update, "body": b'{"S":"queued"}'}),
        request("dynamodb", key="ASIA", agent=WATCHER, **update),
    ]
    assert [cloud.call(one)[0] for one in let_through] == [200] * 5
    assert cloud.got[0] == b'{"S":"running"}', "a body that was looked into is passed on whole"
    assert cloud.call(request("dynamodb", key="ASIA", **update))[0] == 500


def test_the_watcher_and_unsigned_calls_are_never_struck(cloud: Cloud) -> None:
    cloud.plan({"what": "call", "services": ["s3"]})
    unsigned = request("s3")
    del unsigned["HTTP_AUTHORIZATION"]
    assert cloud.call(request("s3", agent=WATCHER))[0] == 200
    assert cloud.call(unsigned)[0] == 200
    assert cloud.struck() == [0]


def test_every_second_call_at_most_twice_and_for_ten_seconds(cloud: Cloud) -> None:
    cloud.plan({"what": "call", "services": ["s3"], "every": 2, "times": 2, "seconds": 10})
    assert [cloud.call(request("s3"))[0] for _ in range(6)] == [200, 500, 200, 500, 200, 200]
    cloud.plan({"what": "call", "services": ["s3"], "seconds": 10})
    cloud.now += 10.1
    assert cloud.call(request("s3"))[0] == 200


def test_a_held_call_waits_and_is_not_carried_out(cloud: Cloud) -> None:
    cloud.plan({"what": "call", "services": ["s3"], "hold": 4})
    assert cloud.call(request("s3"))[0] == 500
    assert (cloud.slept, cloud.got) == ([4], [])


def test_events_are_lost_doubled_and_overtaken_and_others_are_not(cloud: Cloud) -> None:
    cloud.plan({"what": "event", "detail_type": "SageMaker*", "do": "drop", "every": 2})
    for event in ("a", "b"):
        cloud.deliver(event)
    cloud.deliver("c", "Object Created")
    assert cloud.delivered == ["a", "c"]
    cloud.plan({"what": "event", "do": "double"})
    cloud.deliver("d")
    assert cloud.delivered == ["a", "c", "d", "d"]
    cloud.plan({"what": "event", "do": "late"})
    for event in ("e", "f", "g"):
        cloud.deliver(event)
    assert cloud.delivered == ["a", "c", "d", "d"]
    cloud.ring()
    assert cloud.delivered[4:] == ["g", "f", "e"]


def test_a_plan_is_replaced_as_a_whole_and_taken_away(cloud: Cloud) -> None:
    cloud.plan({"what": "call", "services": ["s3"]})
    cloud.plan({"what": "call", "services": ["dynamodb"]})
    assert cloud.call(request("s3"))[0] == 200
    cloud.call(request("s3", method="DELETE", path=ROUTE))
    assert cloud.call(request("dynamodb"))[0] == 200
    assert cloud.struck() == []


@pytest.mark.parametrize(
    "rule",
    [
        {"what": "other"},
        {"what": "call"},
        {"what": "call", "services": ["s3"], "nonsense": 1},
        {"what": "call", "services": ["s3"], "every": 0},
        {"what": "event", "do": "explode"},
        {},
    ],
)
def test_a_plan_that_says_nothing_sensible_is_refused_and_the_old_one_stays(cloud: Cloud, rule: dict[str, Any]) -> None:
    cloud.plan({"what": "call", "services": ["s3"]})
    status, answer = cloud.plan(rule)
    assert status == 400 and answer["message"]
    assert cloud.struck() == [0]
