"""The function that the probes deploy: it does what its event asks for. Standard library and boto3 only."""

from __future__ import annotations

import json
import os
import signal
import time

import boto3

TABLE = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"]) if "TABLE_NAME" in os.environ else None


class FatalError(Exception):
    pass


class TransientError(Exception):
    pass


def handler(event, context):
    called = time.time()
    operation = event.get("op", "note")
    if operation == "environment":
        return {"pid": os.getpid(), "variables": dict(os.environ), "left_ms": context.get_remaining_time_in_millis()}
    if operation == "who":
        return boto3.client("sts").get_caller_identity()["Arn"]
    if operation == "fail":
        raise FatalError("it was asked to fail")
    if operation == "sleep":
        time.sleep(event["seconds"])
        return {"slept": event["seconds"], "pid": os.getpid()}
    if operation == "exit":
        os._exit(7)
    if operation == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if operation == "echo":
        return event["value"]
    if operation == "large":
        return "x" * event["bytes"]
    if operation == "token":
        return answer(event, called)
    if operation == "transient":
        return transient(event)
    if "routeKey" in event:
        return {"statusCode": 202, "headers": {"x-probe": "1"}, "body": json.dumps(event)}
    return note(event, called)


def answer(event, called):
    """Note the token; answer it where the event says so."""
    note({"id": event["note"], "token": event["token"]}, called)
    time.sleep(event.get("seconds", 0))
    states = boto3.client("stepfunctions")
    if event.get("answer") == "success":
        try:
            states.send_task_success(taskToken=event["token"], output=json.dumps({"answered": True}))
        except states.exceptions.TaskTimedOut:
            note({"id": f"{event['note']}-refused"}, called)
    if event.get("answer") == "failure":
        states.send_task_failure(taskToken=event["token"], error="JobFailed", cause="exit code 137")


def transient(event):
    """Fail until the third try of this id."""
    counted = TABLE.update_item(
        Key={"pk": event["id"]},
        UpdateExpression="ADD tries :one",
        ExpressionAttributeValues={":one": 1},
        ReturnValues="UPDATED_NEW",
    )
    tries = int(counted["Attributes"]["tries"])
    if tries < 3:
        raise TransientError(f"try {tries}")
    return tries


def note(event, called):
    """Keep what came, and when the handler was called, for the test to read."""
    TABLE.put_item(Item={"pk": f"note-{event.get('id') or 'unknown'}", "event": json.dumps(event), "at": str(called)})
