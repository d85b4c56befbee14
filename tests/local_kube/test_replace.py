"""BatchReplaceClusterNodes of the pretended HyperPod, in botocore's shapes, through the controller's own adapter."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.validate import validate_parameters

from local.config import new_config
from local.kube import sagemaker
from local.kube.hyperpod import HyperPod
from local.kube.store import Store
from nightshift.adapters.hyperpod import SageMakerHyperPod

MODEL = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
STRANGER = "i-0123456789abcdef0"


class Replaced(HyperPod):
    """Notes which instances are to be replaced, without processes to kill."""

    def replace_soon(self, instance_id: str) -> None:
        self.asked = [*getattr(self, "asked", []), instance_id]


@pytest.fixture
def pod(tmp_path: Path) -> Replaced:
    nothing: Any = SimpleNamespace()
    return Replaced(new_config(tmp_path), Store(lambda: datetime.now(UTC)), nothing, nothing, nothing)


def client(pod: HyperPod) -> Any:
    """A client that checks both directions against botocore's model, as the wire would."""

    def call(**body: Any) -> Any:
        operation = MODEL.operation_model("BatchReplaceClusterNodes")
        validate_parameters(body, operation.input_shape)
        answer = sagemaker.answer(pod, "BatchReplaceClusterNodes", body)
        response = {"status_code": 200, "headers": {}, "body": json.dumps(answer).encode()}
        parsed = create_parser("json").parse(response, operation.output_shape)
        parsed.pop("ResponseMetadata", None)
        assert parsed == answer, "nothing of the answer is unknown to botocore"
        return parsed

    return SimpleNamespace(batch_replace_cluster_nodes=call)


def test_known_instances_are_replaced_once_and_one_that_is_gone_is_no_error(pod: Replaced) -> None:
    one, two = list(pod.instances)[:2]
    told = SageMakerHyperPod(client(pod), "local-hyperpod").replace((one, two, one, STRANGER))
    assert told == {one: "", two: "", STRANGER: ""}
    assert pod.asked == [one, two]


@pytest.mark.parametrize("ids", [[], [STRANGER] * 26], ids=["none", "too many"])
def test_a_call_with_none_or_too_many_is_refused_as_a_whole(pod: Replaced, ids: list[str]) -> None:
    with pytest.raises(sagemaker.SageMakerError, match="1 to 25"):
        sagemaker.answer(pod, "BatchReplaceClusterNodes", {"ClusterName": "local-hyperpod", "NodeIds": ids})
