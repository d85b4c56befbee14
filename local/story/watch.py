"""Watches a run as its owner could: the HTTP API, progress.json and Slack. Shows what is new, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

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

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "rejected"})


class StoryFailed(StackError):
    """The story did not go as it must; the text is one clear sentence."""


class Watch:
    """What is known about one run, read a little at a time by ``tick``."""

    def __init__(self, stack: Stack, screen: Screen, run_id: str) -> None:
        self._stack = stack
        self._screen = screen
        self._keys = RunKeys(run_id)
        self._next_view = 0.0
        self._shown_audit: set[tuple[str, str, str]] = set()
        self._shown_slack = 0
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
        self._show_slack()

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
        view = read_view(self._stack.account, self._keys.run_id)
        if view is None:
            return
        self.view = view
        for line in view.audit:
            self._show_audit(line)

    def _show_audit(self, line: AuditLine) -> None:
        key = (line.at.isoformat(), line.actor, line.what)
        if key in self._shown_audit:
            return
        self._shown_audit.add(key)
        what = f"{line.what}: {line.detail}" if line.detail else line.what
        self._screen.line(line.actor, what, line.signal, at=self._screen.since_start(line.at.timestamp()))

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
        self._show_progress(before, now)

    def _show_progress(self, before: Progress | None, now: Progress) -> None:
        at = self._screen.since_start(now.at.timestamp())
        if (before is None or before.resumed_step is None) and now.resumed_step:
            self._screen.line("job", f"attempt {now.attempt} resumes at step {now.resumed_step}", at=at)
        saved_before = before.saved_step if before is not None else now.resumed_step or 0
        if now.saved_step > saved_before:
            self._screen.line("job", f"checkpoint of step {now.saved_step} is saved and verified", at=at)
        if now.success is not None and (before is None or before.success != now.success):
            self._screen.line("job", f"eval at step {now.step}: {now.success:.1%} of the fixed set solved", at=at)
        self._screen.progress(
            ProgressLine(now.attempt, now.phase, now.step, now.total_steps, now.success, now.eta_seconds)
        )

    def _show_slack(self) -> None:
        messages = self.messages
        for message in messages[self._shown_slack :]:
            self._screen.line("slack", message.headline)
        self._shown_slack = len(messages)


def read_view(account: Account, run_id: str) -> RunView | None:
    """``GET /runs/{run_id}``, or None where it does not exist. Raises StoryFailed for any other answer."""
    status, document = account.api("GET", f"/runs/{run_id}")
    if status == 404:
        return None
    if status != 200:
        raise StoryFailed(f"GET /runs/{run_id} answered {status}: {document}")
    return RunView.model_validate(document)
