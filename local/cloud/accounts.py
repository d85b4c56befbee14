"""What the data plane does inside moto, in process: credentials, queues, executions, function settings, the cluster."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from moto.awslambda.utils import get_backend as lambda_backend
from moto.eks.models import eks_backends
from moto.events.models import events_backends
from moto.scheduler.models import scheduler_backends
from moto.secretsmanager.models import secretsmanager_backends
from moto.sqs.models import sqs_backends
from moto.stepfunctions.parser.models import stepfunctions_parser_backends
from moto.sts.models import sts_backends

from local.cloud.functions import FunctionSpec
from local.cloud.iam.asks import World
from local.cloud.patches.executions import NAME
from local.cloud.patches.tokens import machine_of_token
from local.cloud.schedule import Timed, timed
from local.config import StackConfig

PARTITION = "aws"
ROLE_SECONDS = 12 * 3_600
"""Life of a function's credentials; AWS renews them with the environment."""

PATHS = "/usr/local/bin:/usr/bin:/bin"


class Account:
    """The one account and region of the local cloud."""

    def __init__(self, config: StackConfig) -> None:
        self._config = config
        self._home = config.state_dir / "functions-home"
        self._home.mkdir(parents=True, exist_ok=True)
        self._bundle = config.state_dir / "functions-ca.pem"
        self._bundle.write_bytes(config.ca_file.read_bytes())

    def role_session(self, role_arn: str, name: str) -> Any:
        """Credentials as Lambda, Step Functions or EKS gets them for a role (moto's AssumedRole)."""
        return sts_backends[self._config.account][PARTITION].assume_role(
            self._config.region, name, role_arn, policy="", duration=ROLE_SECONDS, external_id=""
        )

    def machine_credentials(self, role_arn: str) -> dict[str, str]:
        """As boto3.client takes them, for the calls of a state machine."""
        session = self.role_session(role_arn, "states")
        return {
            "aws_access_key_id": session.access_key_id,
            "aws_secret_access_key": session.secret_access_key,
            "aws_session_token": session.session_token,
        }

    def world(self) -> World:
        """What the judgement of a request must know of this account."""
        config = self._config
        cluster = f"arn:aws:sagemaker:{config.region}:{config.account}:cluster/{config.hyperpod_cluster}"
        return World(config.region, config.account, machine_of_token, self._secret_arn, cluster)

    def _secret_arn(self, named: str) -> str | None:
        config = self._config
        secrets = secretsmanager_backends[config.account][config.region].secrets
        found = secrets.get(named) if named in secrets else None
        return None if found is None else str(found.arn)

    def function_variables(self, spec: FunctionSpec) -> Mapping[str, str]:
        """Environment of a function's process before its own variables: addresses, and credentials of its role."""
        config = self._config
        session = self.role_session(spec.role_arn, spec.name)
        return {
            "PATH": PATHS,
            "HOME": str(self._home),
            "AWS_REGION": config.region,
            "AWS_DEFAULT_REGION": config.region,
            "AWS_ENDPOINT_URL": config.cloud_url,
            "AWS_ACCESS_KEY_ID": session.access_key_id,
            "AWS_SECRET_ACCESS_KEY": session.secret_access_key,
            "AWS_SESSION_TOKEN": session.session_token,
            "AWS_EC2_METADATA_DISABLED": "true",
            "SSL_CERT_FILE": str(self._bundle),
            "REQUESTS_CA_BUNDLE": str(self._bundle),
        }

    def function_spec(self, deployed: Mapping[str, Any]) -> FunctionSpec:
        """A function as CloudFormation made it, run from its code folder. ``deployed`` is deploy.py's description."""
        config = self._config
        function = lambda_backend(config.account, config.region).get_function(deployed["name"])
        return FunctionSpec(
            name=function.function_name,
            arn=function.function_arn,
            role_arn=function.role,
            code=Path(deployed["code"]),
            python=Path(deployed["python"]) if "python" in deployed else None,
            handler=str(function.handler),
            timeout=float(function.timeout),
            memory=int(function.memory_size),
            runtime=str(function.run_time),
            variables={name: str(value) for name, value in (function.environment_vars or {}).items()},
            retries=int(deployed.get("retries", 2)),
            on_failure_arn=deployed.get("on_failure_arn"),
            dead_letter_arn=_dead_letters(function),
        )

    def enqueue(self, queue_arn: str, body: str) -> None:
        *_, region, account, name = queue_arn.split(":")
        sqs_backends[account][region].send_message(queue_name=name, message_body=body)

    def start_execution(self, machine_arn: str, text: str, name: str) -> None:
        """Start, or find running, the execution of that name."""
        assert NAME.match(name), name
        backend = stepfunctions_parser_backends[self._config.account][self._config.region]
        backend.start_execution(machine_arn, name, text)

    def deliver_event(self, event: Mapping[str, Any]) -> None:
        """Give an event to every rule of the default bus that matches it."""
        for rule in self.rules():
            rule.send_to_targets(cast(Any, dict(event)))

    def rules(self) -> list[Any]:
        """Rules of the default bus."""
        bus = events_backends[self._config.account][self._config.region].event_buses["default"]
        return list(bus.rules.values())

    def schedules(self) -> list[Timed]:
        """EventBridge Scheduler's schedules, as the clock takes rules."""
        groups = scheduler_backends[self._config.account][self._config.region].schedule_groups
        return [timed(one) for group in list(groups.values()) for one in list(group.schedules.values())]

    def seed_cluster(self) -> None:
        """The EKS cluster exists before the stack, at the local Kubernetes API's address."""
        config = self._config
        backend = eks_backends[config.account][config.region]
        cluster = backend.create_cluster(
            config.eks_cluster, f"arn:aws:iam::{config.account}:role/eks", {"subnetIds": ["subnet-local"]}
        )
        cluster.endpoint = config.kube_url
        cluster.certificate_authority = {"data": base64.b64encode(config.ca_file.read_bytes()).decode()}


def _dead_letters(function: Any) -> str | None:
    configured = getattr(function, "dead_letter_config", None) or {}
    return configured.get("TargetArn")


def event_from(document: bytes) -> dict[str, Any]:
    """A full EventBridge event from a request's body. Raises ValueError naming what is missing."""
    event = json.loads(document)
    wanted = ("id", "detail-type", "source", "account", "time", "region", "resources", "detail")
    missing = [name for name in wanted if name not in event]
    if missing:
        raise ValueError(f"not a full EventBridge event: no {', '.join(missing)}")
    return {"version": "0", **event}
