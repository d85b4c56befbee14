"""Time, Lambda and the bucket of the fake world.

Gaps: an invocation that is overtaken goes on only after the one that overtook it has ended (interleavings nest); a
function never starts cold; a sleep takes three seconds at least, so a held look observes that much less often; S3 is
consistent and answers documents without parsing them again.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from nightshift.contract.base import Document
from nightshift.contract.control import Control
from nightshift.contract.evals import EvalSummary
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, Progress
from nightshift.contract.layout import RunKeys
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import NightshiftError, PermanentError, TransientError, bounded
from nightshift.steps.ports import NotBelieved
from tests.builders import NOW

MAX_DEPTH = 6
SHORTEST_SLEEP = 3.0
D = TypeVar("D", bound=Document)
Failure = tuple[str, str]


class Killed(BaseException):
    """The invocation's process is gone: nothing in it can catch this."""


@dataclass(frozen=True)
class Rates:
    """Chances of a seed's faults: of each invocation, each call of a service, each event."""

    crash: float = 0.0
    lost_answer: float = 0.0
    twice: float = 0.0
    refused: float = 0.0
    slow: float = 0.0
    event_lost: float = 0.0
    event_twice: float = 0.0
    event_late: float = 0.0


@dataclass
class Invocation:
    """One running function: when Lambda ends it, and after how many of its writes it dies."""

    deadline: float
    dies_after: int | None = None
    sheltered: bool = False
    writes: int = 0


class Loop:
    """Virtual time in seconds, events, and invocations; everything random comes from ``rng``."""

    def __init__(self, seed: int) -> None:
        self.rng, self.time, self.rates = random.Random(seed), 0.0, Rates()
        self.notes: list[tuple[float, str]] = []
        self.unexpected: list[str] = []
        self.after: Callable[[], None] = lambda: None
        self._now = -1.0, NOW
        self.failures = 0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None], bool]] = []
        self._count = self._pressing = self._depth = 0
        self._running: list[Invocation] = []

    # time -------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        if self._now[0] != self.time:
            self._now = self.time, NOW + timedelta(seconds=round(self.time, 6))
        return self._now[1]

    def stamp(self) -> str:
        return self.now().isoformat()

    def note(self, what: str) -> None:
        self.notes.append((self.time, what))

    def at(self, delay: float, call: Callable[[], None], background: bool = False) -> None:
        """``background`` events do not keep the world going."""
        self._count += 1
        self._pressing += not background
        heapq.heappush(self._heap, (self.time + delay, self._count, call, background))

    @property
    def busy(self) -> bool:
        return self._pressing > 0

    def step(self, until: float = float("inf")) -> bool:
        """One event that is due by ``until``; False where there is none."""
        if not self._heap or self._heap[0][0] > until:
            return False
        due, _, call, background = heapq.heappop(self._heap)
        self.time, self._pressing = max(self.time, due), self._pressing - (not background)
        self.events += 1
        call()
        self.after()
        return True

    def advance(self, seconds: float) -> None:
        until = self.time + seconds
        if self._depth < MAX_DEPTH:
            self._depth += 1
            while self.step(until):
                pass
            self._depth -= 1
        self.time = max(self.time, until)

    # functions --------------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """A short sleep takes three seconds here: a held look observes that much less often, and a world costs less."""
        self.advance(max(seconds, SHORTEST_SLEEP))
        self._alive()

    def remaining(self) -> float:
        return self._running[-1].deadline - self.time if self._running else 60.0

    @property
    def sheltered(self) -> bool:
        return bool(self._running) and self._running[-1].sheltered

    def _alive(self) -> None:
        if self._running and self.time > self._running[-1].deadline:
            raise Killed("Sandbox.Timedout")

    def touch(self, service: str) -> None:
        """Every call of a service passes here before it is made."""
        if not self._running:
            return
        if self.rates.slow and self.rng.random() < self.rates.slow:
            self.advance(self.rng.uniform(0.01, 4.0))
        self._alive()
        if self.rates.refused and not self._running[-1].sheltered and self.rng.random() < self.rates.refused:
            self.failures += 1  # here: a pass of the reconciler goes on after it
            raise TransientError("chaos", f"{service} throttles")

    def wrote(self, what: str) -> None:
        """Every write passes here after it was made."""
        if not self._running:
            return
        mine = self._running[-1]
        mine.writes += 1
        if mine.dies_after is not None and mine.writes >= mine.dies_after:
            self.note(f"killed after {what}")
            raise Killed("Runtime.ExitError")

    def call(self, what: str, timeout: float, body: Callable[[], Any], sheltered: bool) -> tuple[Any, Failure | None]:
        """Run a function's code at once."""
        dies = None
        if not sheltered and self.rng.random() < self.rates.crash:
            dies = self.rng.randint(1, 6)
        self._running.append(Invocation(self.time + timeout, dies, sheltered))
        depth = len(self._running)
        try:
            return body(), None
        except Killed as death:
            self.failures += 1
            self.note(f"{what} died: {death}")
            return None, (str(death), "")
        except NightshiftError as error:
            self.failures += 1
            self.note(f"{what} failed: {bounded(error, 160)}")
            return None, (type(error).__name__, json.dumps({"errorMessage": str(error)}))
        except Exception as error:  # noqa: BLE001 - whatever a step raises is what this world is here to find
            self.unexpected.append(f"{what}: {type(error).__name__}: {error}")
            return None, (type(error).__name__, str(error))
        finally:
            del self._running[depth - 1 :]

    def deliver(self, what: str, timeout: float, body: Callable[[], Any], tries: int = 3) -> None:
        """An asynchronous invocation: repeated after one and two minutes. Behind the last try stands the reconciler."""
        _, failure = self.call(what, timeout, body, sheltered=False)
        if failure is not None and tries > 1:
            self.at(60.0 * (4 - tries), lambda: self.deliver(what, timeout, body, tries - 1))

    def publish(self, what: str, timeout: float, body: Callable[[], Any]) -> None:
        """An event on its way: it may be lost, late, or come twice."""
        rng, rates = self.rng, self.rates
        if rng.random() < rates.event_lost:
            return self.note(f"lost: {what}")
        late = rng.uniform(5, 300) if rng.random() < rates.event_late else rng.uniform(0.2, 3)
        self.at(late, lambda: self.deliver(what, timeout, body))
        if rng.random() < rates.event_twice:
            self.at(late + rng.uniform(0, 90), lambda: self.deliver(what, timeout, body))
        return None


class Bucket:
    """``steps.ports.Artifacts`` in memory; ``unreadable`` keys answer None as garbage does."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.objects: dict[str, dict[str, Document | RunSpec | bytes]] = {}
        self._digests: dict[str, tuple[Any, FileDigest]] = {}

    def store(self, run_id: str, key: str, thing: Document | RunSpec | bytes) -> None:
        self.objects.setdefault(run_id, {})[key] = thing

    def _read(self, run_id: str, key: str, kind: type[D]) -> D | None:
        self._loop.touch("S3")
        found = self.objects.get(run_id, {}).get(key)
        return found if isinstance(found, kind) else None

    def _all(self, run_id: str, kind: type[D]) -> list[D]:
        self._loop.touch("S3")
        return [v for v in self.objects.get(run_id, {}).values() if isinstance(v, kind)]

    def spec(self, run_id: str) -> RunSpec:
        self._loop.touch("S3")
        found = self.objects.get(run_id, {}).get(RunKeys(run_id).spec)
        if not isinstance(found, RunSpec):
            raise PermanentError(run_id, "its spec is missing", "Ask again under another run id.")
        return found

    def put_spec(self, spec: RunSpec) -> None:
        self._put(spec.run_id, RunKeys(spec.run_id).spec, spec)

    def progress(self, run_id: str, attempt: int) -> Progress | None:
        return self._read(run_id, RunKeys(run_id).progress(attempt), Progress)

    def outcome(self, run_id: str, attempt: int) -> Outcome | None:
        return self._read(run_id, RunKeys(run_id).outcome(attempt), Outcome)

    def summaries(self, run_id: str) -> Sequence[EvalSummary]:
        return self._all(run_id, EvalSummary)

    def exports(self, run_id: str) -> Sequence[ExportRecord]:
        return self._all(run_id, ExportRecord)

    def control(self, control: Control) -> None:
        self._put(control.run_id, RunKeys(control.run_id).control, control)

    def asked(self, run_id: str) -> Control | None:
        """control.json as the job reads it."""
        found = self.objects[run_id].get(RunKeys(run_id).control)
        return found if isinstance(found, Control) else None

    def put(self, run_id: str, key: str, body: bytes, content_type: str) -> FileDigest:
        self._put(run_id, key, body)
        return self._digest(key, body)

    def _put(self, run_id: str, key: str, thing: Document | RunSpec | bytes) -> None:
        self._loop.touch("S3")
        self.store(run_id, key, thing)
        self._loop.wrote(f"put {key.rsplit('/', 1)[1]}")

    def copy_export(self, record: ExportRecord, folder: str) -> dict[str, FileDigest]:
        source, objects = RunKeys(record.run_id).export(record.attempt, record.step), self.objects[record.run_id]
        for name in record.files:
            self._put(record.run_id, f"{folder}{name}", objects[f"{source}{name}"])
        return {f"{folder}{name}": digest for name, digest in record.files.items()}

    def digests(self, run_id: str) -> dict[str, FileDigest]:
        self._loop.touch("S3")
        prefix = RunKeys(run_id).prefix
        return {k.removeprefix(prefix): self._digest(k, v) for k, v in self.objects.get(run_id, {}).items()}

    def _digest(self, key: str, thing: Document | RunSpec | bytes) -> FileDigest:
        known = self._digests.get(key)
        if known is None or known[0] is not thing:
            body = thing if isinstance(thing, bytes) else thing.model_dump_json().encode()
            known = thing, FileDigest(sha256=hashlib.sha256(body).hexdigest(), size=len(body))
            self._digests[key] = known
        return known[1]

    def read_small(self, key: str) -> bytes | None:
        self._loop.touch("S3")
        found = self.objects.get(key.split("/")[1], {}).get(key)
        return found if isinstance(found, bytes) else None

    def manifest(self, run_id: str) -> bytes | None:
        return self.read_small(RunKeys(run_id).manifest)

    def doubt(self, key: str, why: str) -> None:
        self._loop.note(f"{key} is not believed: {why}")

    def not_believed(self) -> Sequence[NotBelieved]:
        return []

    def links(self, run_id: str) -> dict[str, str]:
        return {"Report": f"s3://bucket/{RunKeys(run_id).report}"}
