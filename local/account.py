"""The local AWS account as its user sees it: clients, the HTTP API with signed requests, events, objects."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from local.config import StackConfig
from nightshift.contract.events import EVENT_SOURCE, START_DETAIL_TYPE

_TIMEOUT_SECONDS = 30


class Account:
    """Everything that a person with credentials for the account could do from outside."""

    def __init__(self, config: StackConfig) -> None:
        self._config = config
        self.api_url = config.cloud_url
        """Address of the HTTP API; known when the stack's outputs are."""
        self._credentials = Credentials(config.aws_env["AWS_ACCESS_KEY_ID"], config.aws_env["AWS_SECRET_ACCESS_KEY"])

    def client(self, service: str) -> Any:
        """A boto3 client of the local account."""
        return boto3.client(
            service,
            endpoint_url=self._config.cloud_url,
            region_name=self._config.region,
            aws_access_key_id=self._credentials.access_key,
            aws_secret_access_key=self._credentials.secret_key,
            config=Config(
                connect_timeout=5,
                read_timeout=_TIMEOUT_SECONDS,
                retries={"max_attempts": 2},
                s3={"addressing_style": "path"},
                user_agent_appid="nightshift-local",  # whom local.cloud.faults never hits
            ),
        )

    @cached_property
    def _s3(self) -> Any:
        return self.client("s3")

    @cached_property
    def states(self) -> Any:
        """Step Functions."""
        return self.client("stepfunctions")

    def put_start(self, spec: dict[str, Any], owner: str = "demo") -> None:
        """Ask for a run through EventBridge."""
        self.put_entry(start_entry(spec, owner))

    def put_entry(self, entry: dict[str, str]) -> None:
        """PutEvents with one entry on the default bus. Raises RuntimeError where the bus refuses it."""
        answer = self.client("events").put_events(Entries=[entry])
        if answer["FailedEntryCount"]:
            raise RuntimeError(f"EventBridge refused the event: {answer['Entries'][0]}")

    def api(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """(status, document) of one call of the HTTP API, signed with SigV4."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        request = AWSRequest(method, self.api_url + path, headers, data)
        SigV4Auth(self._credentials, "execute-api", self._config.region).add_auth(request)
        plain = urllib.request.Request(request.url, data, dict(request.headers.items()), method=method)
        try:
            with urllib.request.urlopen(plain, timeout=_TIMEOUT_SECONDS) as answer:
                return answer.status, _document(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _document(error.read())

    def read(self, key: str) -> bytes | None:
        """An object of the artifact bucket, or None."""
        try:
            body: bytes = self._s3.get_object(Bucket=self._config.bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404", "NoSuchBucket"):
                return None
            raise
        return body

    def write(self, key: str, body: bytes) -> None:
        """Put an object into the artifact bucket."""
        self._s3.put_object(Bucket=self._config.bucket, Key=key, Body=body)

    def list_keys(self, prefix: str = "") -> list[str]:
        """All keys of the artifact bucket below a prefix, sorted."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._config.bucket, Prefix=prefix)
        return sorted(item["Key"] for page in pages for item in page.get("Contents", []))

    def executions(self, machine_arn: str) -> list[dict[str, Any]]:
        """All executions of a state machine, oldest first."""
        pages = self.states.get_paginator("list_executions").paginate(stateMachineArn=machine_arn)
        found = [item for page in pages for item in page["executions"]]
        return sorted(found, key=lambda item: item["startDate"])

    def history(self, execution_arn: str) -> list[dict[str, Any]]:
        """The history of one execution, oldest first."""
        pages = self.states.get_paginator("get_execution_history").paginate(executionArn=execution_arn)
        return [event for page in pages for event in page["events"]]

    def items(self, table: str) -> Iterator[dict[str, Any]]:
        """All items of a DynamoDB table, as DynamoDB JSON."""
        for page in self.client("dynamodb").get_paginator("scan").paginate(TableName=table):
            yield from page["Items"]


def start_entry(spec: dict[str, Any], owner: str) -> dict[str, str]:
    """A start event as an entry of PutEvents."""
    detail = json.dumps({"version": 1, "spec": spec, "owner": owner})
    return {"Source": EVENT_SOURCE, "DetailType": START_DETAIL_TYPE, "Detail": detail}


def _document(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        parsed = json.loads(body)
    except ValueError:
        return {"text": body[:500].decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {"value": parsed}
