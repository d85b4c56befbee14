"""``python -m local up``: the stack, kept running for a person to play with."""

from __future__ import annotations

import getpass
import json
import shlex
import time
from pathlib import Path

from local.account import Account, start_entry
from local.config import StackConfig
from local.processes import ending_on_signals
from local.stack import Stack
from local.story.request import demo_request
from local.story.screen import Screen

_CHECK_EVERY = 1.0


def run_up(out: Path, screen: Screen) -> int:
    """Runs until Ctrl-C. Raises ChildFailed where a process of the stack ends by itself."""
    stack = Stack(lambda text: screen.line("stack", text), logs_to=out / "logs")
    with ending_on_signals(), stack:
        _print_addresses(stack, screen)
        try:
            while True:
                stack.supervisor.check()
                time.sleep(_CHECK_EVERY)
        except KeyboardInterrupt:
            screen.line("stack", "ending everything")
    screen.line("stack", f"ended; processes left: {len(stack.left_over)}")
    return 1 if stack.left_over else 0


def run_start(stack_json: Path) -> int:
    """Send the demo's start event to a stack that ``up`` keeps running."""
    request = demo_request()
    Account(StackConfig.load(stack_json)).put_start(request.spec, owner=getpass.getuser())
    print(f"start event for run {request.run_id} put on the event bus")
    return 0


def _write_entries(stack: Stack) -> Path:
    """The start event as a file for the AWS CLI."""
    path = stack.config.state_dir / "entries.json"
    path.write_text(json.dumps([start_entry(demo_request().spec, getpass.getuser())], indent=1))
    return path


def _print_addresses(stack: Stack, screen: Screen) -> None:
    config, outputs = stack.config, stack.outputs
    where = [
        ("AWS (moto; Lambda by awslambdaric)", config.cloud_url),
        ("HTTP API, signed with SigV4", f"{stack.account.api_url}/runs"),
        ("Kubernetes API, EKS bearer token", config.kube_url),
        ("authenticated Ray endpoint", config.endpoint_url),
        ("pretended HyperPod: nodes and faults", config.admin_url),
        ("Slack receiver", config.slack_url),
        ("private CA of the three above with https", str(config.ca_file)),
        ("artifact bucket", f"s3://{config.bucket}"),
        ("table", outputs["TableName"]),
        ("state machine of a run", outputs["TrainingRunArn"]),
        ("state machine of a shift", outputs["ShiftArn"]),
        ("what pods see as /shared", str(config.shared_dir)),
        ("logs, one file a process", str(config.log_dir)),
        ("configuration of all processes", str(config.state_dir / "stack.json")),
    ]
    screen.heading("What is where")
    screen.table(("what", "where"), where)
    screen.heading("In another shell")
    screen.text("\n".join(f"  export {name}={shlex.quote(value)}" for name, value in config.aws_env.items()))
    screen.heading("Ask for a run (either of the two sends the same start event)")
    screen.text(f"  python -m local start {config.state_dir / 'stack.json'}")
    screen.text(f"  aws events put-events --entries file://{_write_entries(stack)}")
    screen.heading("Kill a node")
    screen.text(f"  curl -s {config.admin_url}/nodes")
    screen.text(f'  curl -s -d \'{{"instance_id": "i-..."}}\' {config.admin_url}/faults/kill-node')
    screen.text()
    screen.text("Ctrl-C ends everything.")
