"""UpdateCluster of the pretended HyperPod, in botocore's shapes, through the controller's own adapter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.validate import validate_parameters

from local.config import new_config
from local.kube import sagemaker
from local.kube.hyperpod import HEAD_GROUP, WORKER_GROUP, HyperPod
from local.kube.store import NODE, Store
from nightshift.adapters.hyperpod import SageMakerHyperPod
from nightshift.core.errors import TransientError

MODEL = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")


class Client:
    """Checks both directions against botocore's model, as the wire would; errors are botocore's."""

    def __init__(self, pod: HyperPod) -> None:
        self.pod, self.sent, self.throttled = pod, list[dict[str, Any]](), False
        self.meta = SimpleNamespace(service_model=MODEL)

    def describe_cluster(self, **body: Any) -> Any:
        return self._call("DescribeCluster", body)

    def update_cluster(self, **body: Any) -> Any:
        self.sent.append(body)
        return self._call("UpdateCluster", body)

    def _call(self, name: str, body: dict[str, Any]) -> Any:
        operation = MODEL.operation_model(name)
        validate_parameters(body, operation.input_shape)
        if self.throttled:
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, name)
        try:
            answer = sagemaker.answer(self.pod, name, body)
        except sagemaker.SageMakerError as error:
            raise ClientError({"Error": {"Code": error.code, "Message": error.message}}, name) from error
        response = {"status_code": 200, "headers": {}, "body": json.dumps(answer).encode()}
        return create_parser("json").parse(response, operation.output_shape)


def played(folder: Path, story: Callable[[HyperPod, Client, SageMakerHyperPod], Awaitable[None]]) -> None:
    async def lose(pods: list[Any]) -> None:
        assert not pods

    async def play() -> None:
        config = new_config(folder).model_copy(update={"spare_joins_after": 0.05})
        controller: Any = SimpleNamespace(wake=lambda: None, lose=lose)
        nothing: Any = SimpleNamespace()
        pod = HyperPod(config, Store(lambda: datetime.now(UTC)), nothing, controller, nothing)
        client = Client(pod)
        try:
            await story(pod, client, SageMakerHyperPod(client, config.hyperpod_cluster))
        finally:
            await pod.stop()

    asyncio.run(play())


def counts(adapter: SageMakerHyperPod) -> dict[str, tuple[int, int]]:
    return {g.name: (g.current, g.target) for g in adapter.view().groups}


def test_a_group_grows_and_shrinks_and_the_others_are_told_again_as_they_are(tmp_path: Path) -> None:
    async def story(pod: HyperPod, client: Client, adapter: SageMakerHyperPod) -> None:
        before = pod.config.worker_nodes
        assert adapter.resize({WORKER_GROUP: before + 2}) == ""
        (sent,) = client.sent
        named = {g["InstanceGroupName"]: g for g in sent["InstanceGroups"]}
        assert {n: g["InstanceCount"] for n, g in named.items()} == {HEAD_GROUP: 1, WORKER_GROUP: before + 2}
        for group in named.values():
            assert group["ExecutionRole"] and group["LifeCycleConfig"]["OnCreate"] == "on_create.sh"
            assert group["ThreadsPerCore"] == 1 and "CurrentCount" not in group
        assert sent["NodeRecovery"] == "Automatic"
        assert counts(adapter)[WORKER_GROUP] == (before, before + 2)
        assert adapter.resize({WORKER_GROUP: before + 2}) == "" and len(client.sent) == 1, (
            "it is meant to be so already"
        )
        assert "ConflictException" in adapter.resize({WORKER_GROUP: before + 3})
        for _ in range(100):
            await asyncio.sleep(0.02)
            if not pod.scaling:
                break
        assert counts(adapter)[WORKER_GROUP] == (before + 2, before + 2)
        assert adapter.resize({WORKER_GROUP: 0}) == ""
        await asyncio.sleep(0.05)
        assert counts(adapter) == {HEAD_GROUP: (1, 1), WORKER_GROUP: (0, 0)}
        assert len(list(pod.store.all(NODE))) == 1

    played(tmp_path, story)


def test_what_hyperpod_refuses_is_told_and_what_it_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    async def story(pod: HyperPod, client: Client, adapter: SageMakerHyperPod) -> None:
        assert adapter.resize({"nowhere": 1}).endswith("has no instance group nowhere") and not client.sent
        assert adapter.resize({WORKER_GROUP: 9}).startswith("ResourceLimitExceeded: The account-level limit")
        client.throttled = True
        with pytest.raises(TransientError, match="does not answer"):
            adapter.resize({WORKER_GROUP: 1})

    played(tmp_path, story)


def test_an_update_that_leaves_a_group_out_is_an_error_here(tmp_path: Path) -> None:
    async def story(pod: HyperPod, client: Client, adapter: SageMakerHyperPod) -> None:
        role = "arn:aws:iam::123456789012:role/x"
        alone = [{"InstanceGroupName": WORKER_GROUP, "InstanceCount": 1, "ExecutionRole": role}]
        with pytest.raises(ClientError, match="InstanceGroups must be"):
            client.update_cluster(ClusterName=pod.config.hyperpod_cluster, InstanceGroups=alone)

    played(tmp_path, story)
