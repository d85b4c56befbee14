"""Watches a run as its owner could: the HTTP API, progress.json and Slack. Shows what is new, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from local.account import Account
from local.processes import StackError
from local.stack import Stack
from local.story.screen import ProgressLine, Screen
from local.story.slack import SlackMessage
from nightshift.contract import Progress, RunKeys
from nightshift.contract.api import AuditLine, RunView

TICK_SECONDS = 0.4
_VIEW_EVERY = 1.6
"""Seconds between calls of GET /runs/{id}: each is a Lambda invocation, and training runs on the same two cores."""

_LINE_LIMIT = 220
_PATIENCE = 4
"""Unusable answers of the API in a row that are passed over."""

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "rejected"})


class StoryFailed(StackError):
    """The story did not go as it must; the text is one clear sentence."""


class Watch:
    """What is known about one run, read a little at a time by ``tick``."""

    def __init__(self, stack: Stack, screen: Screen, run_id: str, eval_interval: int) -> None:
        self._stack = stack
        self._screen = screen
        self._keys = RunKeys(run_id)
        self._eval_interval = eval_interval
        self._next_view = 0.0
        self._failures = 0
        self._known_audit: set[tuple[str, str, str]] = set()
        self._known_slack = 0
        self._news: list[tuple[datetime, str, str, str | None]] = []
        self._latest: ProgressLine | None = None
        self.view: RunView | None = None
        self.progress: dict[int, Progress] = {}

    @property
    def attempt(self) -> int:
        return self.view.attempt if self.view is not None else 0

    @property
    def messages(self) -> list[SlackMessage]:
        return self._stack.slack

    def until(self, what: str, condition: Callable[[], bool], deadline: float) -> None:
        """Tick until ``condition``; ``deadline`` is a value of time.monotonic(). Raises StoryFailed with ``what``."""
        while not condition():
            if time.monotonic() > deadline:
                raise StoryFailed(f"no {what} within the time allowed; the run is {self._where()}")
            time.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Read and show what is new. Raises ChildFailed where a process of the stack is gone."""
        self._stack.supervisor.check()
        if time.monotonic() >= self._next_view:
            self._next_view = time.monotonic() + _VIEW_EVERY
            self._read_view()
        self._read_progress()
        self._read_slack()
        self._show()

    def refresh(self) -> None:
        """Read everything now."""
        self._next_view = 0.0
        self.tick()

    def _where(self) -> str:
        if self.view is None:
            return "not known to the API"
        return (
            f"{self.view.state}, attempt {self.view.attempt}, step {self.view.step}: {self.view.sentence or 'no word'}"
        )

    def _read_view(self) -> None:
        try:
            view = read_view(self._stack.account, self._keys.run_id)
        except StoryFailed:
            self._failures += 1  # the API is allowed a bad moment, as any is
            if self._failures > _PATIENCE:
                raise
            return
        self._failures = 0
        if view is None:
            return
        self.view = view
        for line in view.audit:
            self._take_audit(line)

    def _take_audit(self, line: AuditLine) -> None:
        key = (line.at.isoformat(), line.actor, line.what)
        if key in self._known_audit:
            return
        self._known_audit.add(key)
        self._note(line.at, line.actor, f"{line.what}: {line.detail}" if line.detail else line.what, line.signal)

    def _read_progress(self) -> None:
        if self.attempt < 1:
            return
        body = self._stack.account.read(self._keys.progress(self.attempt))
        if body is None:
            return
        now, before = Progress.from_json(body), self.progress.get(self.attempt)
        if now == before:
            return
        self.progress[self.attempt] = now
        for what in milestones(before, now, self._eval_interval):
            self._note(now.at, "job", what)
        self._latest = ProgressLine(now.attempt, now.phase, now.step, now.total_steps, now.success, now.eta_seconds)

    def _read_slack(self) -> None:
        messages = self.messages
        if len(messages) > self._known_slack:
            self._read_view()  # what the message tells of was written down before it
        for message in messages[self._known_slack :]:
            self._note(datetime.fromisoformat(message.at), "slack", message.headline)
        self._known_slack = len(messages)

    def _note(self, at: datetime, actor: str, what: str, signal: str | None = None) -> None:
        self._news.append((at, actor, one_line(what), signal))

    def _show(self) -> None:
        """Everything new in the order in which it happened, though it came from three places."""
        for at, actor, what, signal in sorted(self._news, key=lambda item: item[0]):
            self._screen.line(actor, what, signal, at=self._screen.since_start(at.timestamp()))
        self._news.clear()
        if self._latest is not None:
            self._screen.progress(self._latest)


def milestones(before: Progress | None, now: Progress, eval_interval: int) -> list[str]:
    """What is worth a line of its own between two readings of one attempt's progress."""
    found = []
    if now.resumed_step and (before is None or before.resumed_step is None):
        found.append(f"attempt {now.attempt} resumes at step {now.resumed_step}")
    if before is not None and now.saved_step > before.saved_step and now.saved_step != now.resumed_step:
        found.append(f"checkpoint of step {now.saved_step} is saved and verified")
    if now.success is not None and (before is None or before.success != now.success):
        found.append(f"eval at step {now.step - now.step % eval_interval}: {now.success:.1%} of the fixed set solved")
    return found


def one_line(text: str) -> str:
    """Text from outside on one line of the timeline: cut, and without line breaks."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LINE_LIMIT else f"{flat[: _LINE_LIMIT // 2]} [...] {flat[-_LINE_LIMIT // 2 :]}"


def read_view(account: Account, run_id: str) -> RunView | None:
    """``GET /runs/{run_id}``, or None where it does not exist. Raises StoryFailed for any other answer."""
    status, document = account.api("GET", f"/runs/{run_id}")
    if status == 404:
        return None
    if status != 200:
        raise StoryFailed(f"GET /runs/{run_id} answered {status}: {document}")
    return RunView.model_validate(document)
