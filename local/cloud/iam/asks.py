"""Which permissions a request needs, on which real ARNs, as the Service Authorization Reference has it.

Every call that the project makes is here; a call that is not here cannot be judged, and so is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote

from local.cloud.iam.judge import Ask
from local.cloud.identity import SignedRequest

LIST_BUCKET = "s3:ListBucket"


class UnknownCallError(LookupError):
    """Nothing here says which permission such a call needs."""


@dataclass(frozen=True)
class World:
    """What a request does not say of itself. Each function gives None where there is no such thing."""

    region: str
    account: str
    machine_of_token: Callable[[str], str | None]
    secret: Callable[[str], str | None]
    cluster: str
    """ARN of the HyperPod cluster."""

    def arn(self, service: str, rest: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.account}:{rest}"


def asks(service: str, request: SignedRequest, world: World) -> list[Ask]:
    """What a request needs; ``service`` is the one that it is signed for. Raises UnknownCallError."""
    target = request.headers.get("x-amz-target", "")
    if target:
        operation = target.rpartition(".")[2]
        body: dict[str, Any] = json.loads(request.body or b"{}")
        known = BY_TARGET.get(service)
        if known is None:
            raise UnknownCallError(f"{service}:{operation}")
        return [
            Ask(f"{service}:{action}", resource, context) for action, resource, context in known(operation, body, world)
        ]
    if service == "s3":
        return list(_s3(request))
    if service == "sts":
        return list(_sts(dict(parse_qsl(request.body.decode() or request.query))))
    if service == "lambda" and request.path.endswith("/invocations"):
        name = unquote(request.path.split("/")[3])
        arn = name if name.startswith("arn:") else world.arn("lambda", f"function:{name}")
        return [Ask("lambda:InvokeFunction", arn)]
    if service == "eks" and request.method == "GET" and request.path.startswith("/clusters/"):
        return [Ask("eks:DescribeCluster", world.arn("eks", f"cluster/{request.path.split('/')[2]}"))]
    raise UnknownCallError(f"{service}: {request.method} {request.path}")


Needs = Iterator[tuple[str, str, dict[str, str | list[str]]]]


def _dynamodb(operation: str, body: Mapping[str, Any], world: World) -> Needs:
    if operation == "TransactWriteItems":
        for item in body["TransactItems"]:
            ((kind, one),) = item.items()
            action = "ConditionCheckItem" if kind == "ConditionCheck" else f"{kind}Item"
            yield action, _table(one["TableName"], world), _leading([one.get("Key") or one.get("Item")])
    elif operation == "BatchGetItem":
        for name, asked in body["RequestItems"].items():
            yield operation, _table(name, world), _leading(asked["Keys"]) | _attributes(asked)
    elif operation == "BatchWriteItem":
        for name, requests in body["RequestItems"].items():
            keys = [
                one["PutRequest"]["Item"] if "PutRequest" in one else one["DeleteRequest"]["Key"] for one in requests
            ]
            yield operation, _table(name, world), _leading(keys)
    elif "TableName" in body:
        table = _table(body["TableName"], world)
        indexed = f"{table}/index/{body['IndexName']}" if "IndexName" in body else table
        given = body.get("Key") or body.get("Item")
        yield operation, indexed, _leading([given]) if given else {}
    else:
        raise UnknownCallError(f"dynamodb:{operation}")


def _table(name: str, world: World) -> str:
    return name if name.startswith("arn:") else world.arn("dynamodb", f"table/{name}")


def _attributes(asked: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """The attributes that a projection names, and those of the keys; none where everything is asked for."""
    if "ProjectionExpression" not in asked:
        return {}
    names = asked.get("ExpressionAttributeNames", {})
    shown = [names.get(one.strip(), one.strip()) for one in asked["ProjectionExpression"].split(",")]
    return {"dynamodb:Attributes": [*shown, "pk", "sk"], "dynamodb:Select": "SPECIFIC_ATTRIBUTES"}


def _leading(keys: list[Any]) -> dict[str, str | list[str]]:
    """The partition key of this project's one table is ``pk``, a text."""
    return {"dynamodb:LeadingKeys": [one["pk"]["S"] for one in keys if one and "pk" in one]}


def _states(operation: str, body: Mapping[str, Any], world: World) -> Needs:
    if operation in ("SendTaskSuccess", "SendTaskFailure", "SendTaskHeartbeat"):
        machine = world.machine_of_token(str(body.get("taskToken", "")))
        if machine is not None:  # what never was a token is for Step Functions itself to refuse
            yield operation, machine, {}
    elif operation == "StartExecution":
        yield operation, body["stateMachineArn"], {}
    elif operation in ("DescribeExecution", "StopExecution"):
        yield operation, body["executionArn"], {}
    else:
        raise UnknownCallError(f"states:{operation}")


def _events(operation: str, body: Mapping[str, Any], world: World) -> Needs:
    if operation != "PutEvents":
        raise UnknownCallError(f"events:{operation}")
    for bus in sorted({str(one.get("EventBusName", "default")) for one in body["Entries"]}):
        yield operation, bus if bus.startswith("arn:") else world.arn("events", f"event-bus/{bus}"), {}


def _secrets(operation: str, body: Mapping[str, Any], world: World) -> Needs:
    named = str(body["SecretId"])
    yield operation, world.secret(named) or (named if named.startswith("arn:") else "*"), {}


_GROUP_CALLS = {"CreateModelPackageGroup", "DescribeModelPackageGroup", "ListModelPackages"}
_CLUSTER_CALLS = {"DescribeCluster", "ListClusterNodes", "DescribeClusterNode", "BatchReplaceClusterNodes"}


def _sagemaker(operation: str, body: Mapping[str, Any], world: World) -> Needs:
    if operation in _CLUSTER_CALLS:
        yield operation, world.cluster, {}
    elif operation in _GROUP_CALLS:
        name = str(body["ModelPackageGroupName"])
        yield operation, name if name.startswith("arn:") else world.arn("sagemaker", f"model-package-group/{name}"), {}
        if body.get("Tags"):
            yield "AddTags", world.arn("sagemaker", f"model-package-group/{name}"), {}
    elif operation == "CreateModelPackage":
        group = str(body["ModelPackageGroupName"]).rpartition("/")[2]
        yield operation, world.arn("sagemaker", f"model-package/{group}/1"), {}
        if body.get("Tags"):
            yield "AddTags", world.arn("sagemaker", f"model-package/{group}/1"), {}
    elif operation == "DescribeModelPackage":
        yield operation, str(body["ModelPackageName"]), {}
    elif operation == "AddTags":
        yield operation, str(body["ResourceArn"]), {}
    else:
        raise UnknownCallError(f"sagemaker:{operation}")


BY_TARGET: Mapping[str, Callable[[str, Mapping[str, Any], World], Needs]] = {
    "dynamodb": _dynamodb,
    "states": _states,
    "events": _events,
    "secretsmanager": _secrets,
    "sagemaker": _sagemaker,
}


def _sts(parameters: Mapping[str, str]) -> Iterator[Ask]:
    if parameters.get("Action") == "GetCallerIdentity":
        return  # nobody needs a permission for it
    if parameters.get("Action") != "AssumeRole":
        raise UnknownCallError(f"sts:{parameters.get('Action')}")
    context = {"sts:RoleSessionName": parameters["RoleSessionName"]}
    yield Ask("sts:AssumeRole", parameters["RoleArn"], context)


def object_of(request: SignedRequest) -> tuple[str, str]:
    """(bucket, key) of a request in the path style, the only one on an address without names."""
    bucket, _, key = unquote(request.path).lstrip("/").partition("/")
    return bucket, key


def _s3(request: SignedRequest) -> Iterator[Ask]:
    bucket, key = object_of(request)
    query = parse_qs(request.query, keep_blank_values=True)
    if not bucket:
        raise UnknownCallError(f"s3: {request.method} /")
    where = f"arn:aws:s3:::{bucket}"
    if not key:
        if request.method in ("GET", "HEAD") and not {"versions", "policy", "acl"} & query.keys():
            yield Ask("s3:ListBucketMultipartUploads" if "uploads" in query else LIST_BUCKET, where)
            return
        raise UnknownCallError(f"s3: {request.method} of a bucket with {sorted(query)}")
    where += f"/{key}"
    if request.method in ("GET", "HEAD"):
        if "uploadId" in query:
            yield Ask("s3:ListMultipartUploadParts", where)
        else:
            yield Ask("s3:GetObjectVersion" if "versionId" in query else "s3:GetObject", where)
    elif request.method == "PUT" or (request.method == "POST" and {"uploads", "uploadId"} & query.keys()):
        yield Ask("s3:PutObject", where)
        if "x-amz-copy-source" in request.headers:
            source = unquote(request.headers["x-amz-copy-source"]).lstrip("/")
            yield Ask("s3:GetObject", f"arn:aws:s3:::{source}")
    elif request.method == "DELETE":
        whole = "s3:DeleteObjectVersion" if "versionId" in query else "s3:DeleteObject"
        yield Ask("s3:AbortMultipartUpload" if "uploadId" in query else whole, where)
    else:
        raise UnknownCallError(f"s3: {request.method} of an object with {sorted(query)}")
