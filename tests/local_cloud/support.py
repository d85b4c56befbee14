"""The running local cloud as the probes see it, and what they build in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from local.config import REPOSITORY, StackConfig, new_config

HERE = Path(__file__).parent
TEMPLATE = HERE / "probe" / "template.yaml"
ROLE = "arn:aws:iam::123456789012:role/machine"


def eventually(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first truthy value of ``look``; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"nothing within {seconds} s")
        time.sleep(0.03)


@dataclass(frozen=True)
class Machine:
    """A state machine of one probe."""

    cloud: Cloud
    arn: str

    def start(self, given: Any = None, **more: str) -> str:
        more.setdefault("name", unique("e"))
        started = self.cloud.client("stepfunctions").start_execution(
            stateMachineArn=self.arn, input=json.dumps(given or {}), **more
        )
        return str(started["executionArn"])

    def run(self, given: Any = None, seconds: float = 20.0) -> dict[str, Any]:
        return self.cloud.ended(self.start(given), seconds)


def unique(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex[:10]}"


class Cloud:
    """The running cloud as a user of the account sees it."""

    def __init__(self, config: StackConfig) -> None:
        self.config = config
        self.outputs: dict[str, str] = {}
        self.client = cache(self._client)

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.config.cloud_url,
            region_name=self.config.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 0}, read_timeout=30, s3={"addressing_style": "path"}),
        )

    def machine(self, states: dict[str, Any], **top: Any) -> Machine:
        definition = {"QueryLanguage": "JSONata", "StartAt": next(iter(states)), "States": states, **top}
        created = self.client("stepfunctions").create_state_machine(
            name=unique("m"), definition=json.dumps(definition), roleArn=ROLE
        )
        return Machine(self, created["stateMachineArn"])

    def call(self, payload: Any, **more: Any) -> dict[str, Any]:
        """A state that calls the probe function."""
        arguments = {"FunctionName": self.outputs["ProbeArn"], "Payload": payload}
        return {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "Arguments": arguments, **more}

    def callback(self, note: str, answer: str = "none", **more: Any) -> dict[str, Any]:
        """A state that gives its token to the probe function and waits."""
        payload = {"op": "token", "token": "{% $states.context.Task.Token %}", "note": note, "answer": answer}
        return {**self.call(payload, **more), "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken"}

    def ended(self, execution: str, seconds: float = 20.0) -> dict[str, Any]:
        def look() -> Any:
            found = self.client("stepfunctions").describe_execution(executionArn=execution)
            return None if found["status"] == "RUNNING" else found

        return dict(eventually(look, seconds))

    def history(self, execution: str) -> list[str]:
        pages = self.client("stepfunctions").get_execution_history(executionArn=execution, maxResults=1000)
        return [one["type"] for one in pages["events"]]

    def invoke(self, payload: Any, **more: Any) -> tuple[Any, str | None]:
        """(answer, error kind) of the probe function."""
        more.setdefault("FunctionName", self.outputs.get("ProbeName"))
        answer = self.client("lambda").invoke(Payload=json.dumps(payload), **more)
        return json.loads(answer["Payload"].read() or b"null"), answer.get("FunctionError")

    def note(self, key: str) -> dict[str, Any] | None:
        """What the probe function was told under this id: ``event`` and ``at`` (seconds since the epoch)."""
        table = self.outputs["TableName"]
        item = self.client("dynamodb").get_item(TableName=table, Key={"pk": {"S": f"note-{key}"}}).get("Item")
        return item and {"event": json.loads(item["event"]["S"]), "at": float(item["at"]["S"])}

    def queue(self) -> tuple[str, str]:
        """(url, ARN) of a new queue."""
        sqs = self.client("sqs")
        url = sqs.create_queue(QueueName=unique("q"))["QueueUrl"]
        return url, sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]

    def messages(self, url: str, count: int = 1, seconds: float = 8.0) -> list[Any]:
        """At least ``count`` messages of a queue."""
        found: list[Any] = []

        def look() -> bool:
            answer = self.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10)
            found.extend(json.loads(one["Body"]) for one in answer.get("Messages", []))
            return len(found) >= count

        eventually(look, seconds)
        return found

    def rule(self, pattern: dict[str, Any], arn: str, **target: Any) -> str:
        name = unique("r")
        events = self.client("events")
        events.put_rule(Name=name, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn, **target}])
        return name

    def put(self, source: str, detail: Any, kind: str = "probe") -> dict[str, Any]:
        entry = {"Source": source, "DetailType": kind, "Detail": json.dumps(detail)}
        return dict(self.client("events").put_events(Entries=[entry]))

    def local(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.config.cloud_url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@dataclass
class Child:
    """A started ``local.cloud``."""

    process: subprocess.Popen[bytes]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(10)


def start(config: StackConfig) -> Child:
    """Start a cloud and wait for its READY."""
    log = (config.state_dir / "cloud.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "serve.py"), str(config.save())],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["functions", ".", os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != b"READY\n":
        process.kill()
        pytest.fail(f"local.cloud did not start: {(config.state_dir / 'cloud.log').read_text()[-2000:]}")
    return Child(process)


def probe_config(folder: Path) -> StackConfig:
    """The functions run on this interpreter: the probes need no other. A minute of a schedule is a second."""
    folder.mkdir(parents=True, exist_ok=True)
    changes = {"functions_python": Path(sys.executable), "stack_name": "probe", "schedule_speed": 60.0}
    return new_config(folder).model_copy(update=changes)
