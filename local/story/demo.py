"""``python -m local demo``: one run, end to end, through a node's death. Nothing in it is simulated."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from local import proctree
from local.kube.hyperpod import STRANGER
from local.processes import Child, ending_on_signals
from local.stack import Stack
from local.story.history import PollCost, poll_cost, shift_histories
from local.story.recovery import Recovery
from local.story.request import Request, demo_request
from local.story.screen import Screen
from local.story.summary import Measured, broken_claims, numbers, summary
from local.story.watch import FINAL_STATES, StoryFailed, Watch
from nightshift.contract import Manifest, Phase, Progress, RunKeys

ALLOWED_SECONDS = 600.0
"""For the whole demo; every wait in it ends with this at the latest."""

KILL_AT_SHARE = 0.4
_VERIFY_SECONDS = 120.0


@dataclass(frozen=True)
class Told:
    """What a story leaves when it has been told to its end; all of it was read from outside."""

    manifest: Manifest
    recovery: Recovery
    killed: str
    polls: PollCost
    slack_text: str
    verified: bool
    verification: str


class Story:
    """Plays the story on a running stack. ``out`` takes the bucket's content."""

    def __init__(self, stack: Stack, screen: Screen, request: Request, out: Path, deadline: float) -> None:
        self._stack = stack
        self._screen = screen
        self._request = request
        self._out = out
        self._deadline = deadline
        self._keys = RunKeys(request.run_id)
        self.watch = Watch(stack, screen, request.run_id, request.eval_interval)

    def tell(self) -> Told:
        """From the start event to the verified publication. Raises StoryFailed with one sentence."""
        self._ask()
        self._await_killable()
        killed, recovery = self._kill()
        self._await_recovery(recovery)
        verification = self._start_verification()
        manifest = self._await_end()
        verified, said = self._verdict(verification)
        self._download()
        shifts = shift_histories(self._stack.account, self._stack.outputs["ShiftArn"])
        return Told(manifest, recovery, killed, poll_cost(shifts), self._final_message(), verified, said)

    def _ask(self) -> None:
        self._stack.account.put_start(self._request.spec)
        self._screen.line("you", f"start event for run {self._request.run_id} put on the event bus")
        self.watch.until("run record", lambda: self.watch.view is not None, self._within(30))

    def _await_killable(self) -> None:
        """A checkpoint of about two fifths of the steps is verified, and the step after it is being made."""
        wanted = KILL_AT_SHARE * self._request.total_steps

        def killable() -> bool:
            self._expect_alive()
            progress = self.watch.progress.get(1)
            return progress is not None and progress.saved_step >= wanted and _makes_a_new_step(progress)

        self.watch.until("verified checkpoint of attempt 1", killable, self._within(300))

    def _kill(self) -> tuple[str, Recovery]:
        """HyperPod then says so in its own events: twice about this node, and once about one of somebody else."""
        victim = self._stack.hyperpod.worker_with_pod()
        recovery = Recovery(attempt=2, killed_at=time.time())
        done = self._stack.hyperpod.kill_node(victim)
        self._screen.line("fault", f"node {victim} is dead: SIGKILL to all processes of {', '.join(done['pods'])}")
        self._screen.line("hyperpod", f"events: {victim} unhealthy (twice), {STRANGER} unhealthy (not ours)")
        self._screen.line("hyperpod", f"{done['replacement']} replaces {victim}")
        return victim, recovery

    def _await_recovery(self, recovery: Recovery) -> None:
        def recovered() -> bool:
            self._expect_alive()
            processes = self._stack.supervisor.note() if recovery.running_at is None else []
            before = recovery.running_at
            recovery.look(processes, self.watch.progress.get(recovery.attempt))
            if before is None and recovery.to_running is not None:
                text = f"attempt {recovery.attempt} is RUNNING {recovery.to_running:.1f} s after the kill"
                self._screen.line("job", text, at=self._screen.since_start(recovery.running_at or 0.0))
            return recovery.to_first_step is not None

        self.watch.until("new step of attempt 2", recovered, self._within(240))
        self._screen.line("job", f"first new step {recovery.to_first_step:.1f} s after the kill")

    def _await_end(self) -> Manifest:
        self.watch.until("end of the run", lambda: self._state() in FINAL_STATES, self._within(300))
        self.watch.until("last Slack message", self._is_told, self._within(30))
        self.watch.until("end of all pods", lambda: not self._stack.hyperpod.pods(), self._within(30))
        self._screen.line("check", "the RayCluster is deleted and no pod is left")
        body = self._stack.account.read(self._keys.manifest)
        if body is None:
            raise StoryFailed(f"the run ended as {self._state()}, but there is no manifest: {self._sentence()}")
        holders = lease_holders(self._stack)
        if holders:
            raise StoryFailed(f"the run has ended, but the lease of its pool is still held: {holders}")
        self._screen.line("check", "the lease of the pool is given back")
        return Manifest.from_json(body)

    def _start_verification(self) -> Child:
        """Once the manifest is there, all is: read everything back in a fresh process, while the cluster is torn down."""
        keys, account = self._keys, self._stack.account

        def published() -> bool:
            over = self._state() in FINAL_STATES
            return over or (self._state() == "teardown" and account.read(keys.manifest) is not None)

        self.watch.until("publication", published, self._within(300))
        config = self._stack.config
        argv = [str(config.pod_python), "-m", "training_job", "verify"]
        argv += ["--bucket", config.bucket, "--run-id", self._request.run_id]
        return self._stack.supervisor.start_task("verify", argv, {**config.aws_env, "OMP_NUM_THREADS": "1"})

    def _verdict(self, verification: Child) -> tuple[bool, str]:
        """The fresh process has checked the digests, loaded the adapters and repeated the eval."""
        code, out = self._stack.supervisor.finish(verification, min(_VERIFY_SECONDS, self._left()))
        last = (out.strip().splitlines() or ["it said nothing"])[-1]
        self._screen.line("check", f"read back from S3 in a fresh process: {verdict_words(code, last)}")
        return code == 0, last[:1_000]

    def _download(self) -> None:
        target = self._out / "bucket"
        for key in self._stack.account.list_keys():
            path = target / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._stack.account.read(key) or b"")

    def _state(self) -> str:
        return self.watch.view.state if self.watch.view is not None else "unknown"

    def _sentence(self) -> str:
        view = self.watch.view
        if view is None:
            return "no word"
        return " ".join([view.sentence, *(f"{error.field}: {error.problem}." for error in view.errors)])

    def _expect_alive(self) -> None:
        if self._state() in FINAL_STATES:
            raise StoryFailed(f"the run ended early as {self._state()}: {self._sentence()}")

    def _is_told(self) -> bool:
        return bool(self._final_message())

    def _final_message(self) -> str:
        ends = tuple(f"{self._request.run_id} {end}" for end in ("finished", "failed", "was cancelled"))
        return next((message.text for message in self.watch.messages if message.headline.startswith(ends)), "")

    def _left(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _within(self, seconds: float) -> float:
        return min(self._deadline, time.monotonic() + seconds)


def verdict_words(code: int, last: str) -> str:
    """The verification's one JSON line for a person; the line itself where it says that something is wrong."""
    try:
        said = json.loads(last)
    except ValueError:
        said = {}
    if code or not said.get("ok"):
        return f"NOT OK, exit code {code}: {last[:300]}"
    adapters = ", ".join(f"{name} (step {step})" for name, step in said["adapters"].items())
    repeated = f"the eval repeated to the same rows, {said['solved']} of {said['of']} solved"
    return f"{said['objects']} objects with the right digests, adapters loaded: {adapters}; {repeated}"


def _makes_a_new_step(progress: Progress) -> bool:
    return progress.phase in (Phase.GENERATE, Phase.TRAIN)


def lease_holders(stack: Stack) -> list[str]:
    """Runs that hold the lease of a pool, as the table says."""
    items = stack.account.items(stack.outputs["TableName"])
    return [item["run_id"]["S"] for item in items if item["sk"]["S"] == "LEASE"]


def run_demo(out: Path, screen: Screen) -> int:
    """Everything from an empty computer to the exit code. 0 only if every promise was kept."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    deadline, busy_before = time.monotonic() + ALLOWED_SECONDS, proctree.busy_seconds()
    request = demo_request()
    stack = Stack(lambda text: screen.line("stack", text), logs_to=out / "logs")
    with ending_on_signals(), screen:
        try:
            with stack:
                for note in ("everything is up", *request.notes):
                    screen.line("stack", note)
                told = Story(stack, screen, request, out, deadline).tell()
        finally:
            screen.line("stack", _ending_line(stack))
    measured = _measured(stack, screen, told, busy_before)
    document = summary(request.run_id, told.manifest, measured)
    (out / "summary.json").write_text(json.dumps(document, indent=1) + "\n")
    return _report(screen, out, request, told, measured)


def _ending_line(stack: Stack) -> str:
    if stack.left_over:
        return f"{len(stack.left_over)} processes were still running and were killed: {'; '.join(stack.left_over)}"
    return f"everything is ended; of {stack.supervisor.seen_count} processes that it started none is left"


def _measured(stack: Stack, screen: Screen, told: Told, busy_before: float) -> Measured:
    own = stack.supervisor.cpu_seconds + time.process_time()
    return Measured(
        demo=screen.seconds,
        kill_to_running=told.recovery.to_running,
        kill_to_first_step=told.recovery.to_first_step,
        peak_memory_mib=stack.memory.peak_mib,
        memory_samples=stack.memory.samples,
        events_per_poll=told.polls.events_per_poll,
        looks=told.polls.looks,
        processes_seen=stack.supervisor.seen_count,
        left_over=stack.left_over,
        cpu_seconds=own,
        cpu_of_others=max(0.0, proctree.busy_seconds() - busy_before - own),
    )


def _report(screen: Screen, out: Path, request: Request, told: Told, measured: Measured) -> int:
    rows = numbers(told.manifest, measured)
    problems = broken_claims(told.manifest, told.verified) + [
        f"{row.name}: {row.value}, and the bound is {row.bound}" for row in rows if row.ok is False
    ]
    screen.heading("Slack, last message")
    screen.text(told.slack_text)
    screen.heading("Numbers")
    screen.table(("what", "measured", "bound", ""), [(row.name, row.value, row.bound, row.verdict) for row in rows])
    screen.heading("Where it is")
    for name in (f"bucket/{RunKeys(request.run_id).report}", "summary.json", "logs"):
        screen.text(f"  {out / name}")
    screen.text()
    if problems:
        screen.text(f"NOT OK: {'; '.join(problems)}. {_busy(measured)}Logs: {out / 'logs'}", style="bold red")
        return 1
    screen.text("ok: trained through the death of a node, published, read back and verified", style="bold green")
    return 0


def _busy(measured: Measured) -> str:
    """A hint where times may be long because something else ran: more than a fifth of one core, all the time."""
    if measured.cpu_of_others < 0.2 * measured.demo:
        return ""
    return f"Meanwhile other programs took {measured.cpu_of_others:.0f} s of this computer's processor time. "


def fail(out: Path, sentence: str) -> None:
    """Say why the demo did not get to its end."""
    print(f"\nNOT OK: {sentence}\nLogs: {out / 'logs'}", file=sys.stderr)
