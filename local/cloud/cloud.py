"""The local cloud put together: moto, the data planes, the Slack receiver, and the routes below /_local."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from moto.core.config import default_user_config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from local.cloud import patches
from local.cloud.accounts import Account, event_from
from local.cloud.delivery import Deliveries
from local.cloud.faults import Faults
from local.cloud.front import Front
from local.cloud.functions import FunctionHost, FunctionSpec
from local.cloud.http_api import Answer, HttpApi, Route
from local.cloud.iam.guard import Guard
from local.cloud.iam.judge import Ask
from local.cloud.patches.clients import call_as_role
from local.cloud.patches.cloudformation import on_machine_creation
from local.cloud.patches.events import on_match
from local.cloud.patches.executions import on_status_change
from local.cloud.patches.nested import on_service_call
from local.cloud.schedule import Clock
from local.cloud.slack import PlannedAnswer, SlackReceiver
from local.cloud.status_events import status_event
from local.config import HOST, StackConfig

LOG = logging.getLogger(__name__)
JSON = {"Content-Type": "application/json"}


class LocalCloud:
    """Serves from ``start`` to ``close``. One per process: moto's state and the changes to it are global."""

    def __init__(self, config: StackConfig) -> None:
        patches.apply()
        default_user_config["stepfunctions"]["execute_state_machine"] = True
        default_user_config["lambda"]["use_docker"] = False
        self._config = config
        config.log_dir.mkdir(parents=True, exist_ok=True)
        self._account = Account(config)
        self._guard = Guard(self._account.world(), config.state_dir) if config.enforces_iam else None
        self._functions = FunctionHost(
            config.functions_python, config.log_dir, self._account.function_variables, self._enqueue_failure
        )
        self._api = HttpApi(self._functions.invoke, config.account)
        self._outputs: dict[str, str] = {}
        self._cleanup = ExitStack()

    def start(self) -> None:
        """Begin to serve; every part that was started is in the clean-up at once, so that a failure ends it."""
        config = self._config
        self._cleanup.callback(self._functions.close)
        self._slack = SlackReceiver(HOST, config.slack_port, config.server_pem, config.state_dir / "slack.jsonl")
        self._cleanup.callback(self._slack.close)
        deliveries = Deliveries(
            {
                "lambda": lambda arn, text, _: self._functions.invoke_async(arn.split(":")[6], text.encode()),
                "states": self._account.start_execution,
                "sqs": lambda arn, text, _: self._account.enqueue(arn, text),
            },
            self._permit,
        )
        self._cleanup.callback(deliveries.close)
        faults = Faults()
        deliver = faults.around_delivery(deliveries.accept)
        on_match(deliver)
        if self._guard is not None:
            call_as_role(self._account.machine_credentials)
            on_service_call(self._permit)
            on_machine_creation(self._permit)
        clock = Clock(self._timed, deliver, config.schedule_speed)
        clock.start()
        self._cleanup.callback(clock.close)
        on_status_change(self._announce)
        self._account.seed_cluster()
        front = Front(
            DomainDispatcherApplication(create_backend_app),
            self._functions,
            self._api,
            self._answer,
            config.account,
            config.region,
            config.admin_url,
        )
        app = faults.around(front if self._guard is None else self._guard.around(front))
        server = make_server(HOST, config.cloud_port, app, threaded=True, request_handler=_QuietHandler)
        server.daemon_threads = True  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True, name="cloud").start()
        self._cleanup.callback(server.shutdown)

    def close(self) -> None:
        """End every process and stop serving."""
        self._cleanup.close()

    def _permit(self, role_arn: str, action: str, resource: str) -> None:
        """For what a service does with a role. Raises NotAuthorizedError."""
        if self._guard is not None:
            self._guard.require(role_arn, Ask(action, resource))

    def _enqueue_failure(self, function: FunctionSpec, queue_arn: str, body: str) -> None:
        """Lambda writes to a failure queue with the function's own role."""
        self._permit(function.role_arn, "sqs:SendMessage", queue_arn)
        self._account.enqueue(queue_arn, body)

    def _timed(self) -> list[Any]:
        """Everything that comes by the clock."""
        return [*self._account.rules(), *self._account.schedules()]

    def _announce(self, execution: Any) -> None:
        if execution.sm_type != "EXPRESS":
            event = status_event(execution, self._config.account, self._config.region)
            self._account.deliver_event(event)

    def _answer(self, method: str, path: str, body: bytes) -> Answer:
        """The routes below /_local."""
        routes: dict[tuple[str, str], Callable[[bytes], Any]] = {
            ("POST", "/_local/events"): self._take_event,
            ("POST", "/_local/deployment"): self._take_deployment,
            ("POST", "/_local/deletion"): self._take_deletion,
            ("POST", "/_local/slack/next"): self._plan_slack,
            ("GET", "/_local/outputs"): lambda _: self._outputs,
            ("GET", "/_local/processes"): lambda _: self._processes(),
        }
        route = routes.get((method, path))
        if route is None:
            return Answer(404, b'{"message":"no such route"}', JSON)
        try:
            return Answer(200, json.dumps(route(body)).encode(), JSON)
        except (ValueError, KeyError, TypeError) as problem:
            return Answer(400, json.dumps({"message": f"{type(problem).__name__}: {problem}"}).encode(), JSON)

    def _take_event(self, body: bytes) -> dict[str, str]:
        event = event_from(body)
        self._account.deliver_event(event)
        return {"id": event["id"]}

    def _take_deployment(self, body: bytes) -> dict[str, int]:
        document = json.loads(body)
        for deployed in document["functions"]:
            self._functions.register(self._account.function_spec(deployed))
        self._api.deploy([Route(**one) for one in document["routes"]])
        self._outputs = document["outputs"]
        for deployed in document["functions"]:
            self._functions.warm(deployed["name"])
        return {"functions": len(document["functions"])}

    def _take_deletion(self, _: bytes) -> dict[str, int]:
        ended = self._functions.remove_all()
        self._api.deploy([])
        self._outputs = {}
        return {"functions": ended}

    def _plan_slack(self, body: bytes) -> dict[str, int]:
        document = json.loads(body)
        answer = PlannedAnswer(
            int(document["status"]), dict(document.get("headers", {})), document.get("body", "error")
        )
        for _ in range(int(document.get("times", 1))):
            self._slack.plan(answer)
        return {"planned": answer.status}

    def _processes(self) -> list[dict[str, Any]]:
        own = (os.getpid(), "local cloud")
        return [{"pid": pid, "what": what} for pid, what in (own, *self._functions.processes())]


class _QuietHandler(MotoRequestHandler):
    """Without a line per request, and without waiting for receipts between small packets."""

    disable_nagle_algorithm = True

    def log_request(self, *_: Any, **__: Any) -> None:
        """Silent: what goes wrong is logged where it does."""
