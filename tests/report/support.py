"""Realistic and hostile contract models, and a real https server that answers as it is told."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from hypothesis import strategies as st

from nightshift.contract import AttemptLine, EvalSet, EvalSummary, FileDigest, Manifest, Provenance, wilson_interval
from nightshift.contract.events import BudgetUse, FieldError, Stage, StageEvent
from nightshift.contract.spec import NotifyLevel

NOW = datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC)


def evaluated(
    solved: int, of: int = 64, step: int = 0, attempt: int = 1, eval_set: EvalSet = EvalSet.FIXED
) -> EvalSummary:
    low, high = wilson_interval(solved, of)
    return EvalSummary(
        run_id="maze-demo", attempt=attempt, step=step, eval_set=eval_set, solved=solved, of=of, low=low, high=high,
        avg_score=solved / of, pass_at_1=0.5, rows_sha256="ab" * 32, at=NOW + timedelta(minutes=step),
    )  # fmt: skip


def attempt(n: int, **changes: Any) -> AttemptLine:
    known: dict[str, Any] = {"n": n, "started_at": NOW, "ended_at": NOW + timedelta(minutes=67)}
    return AttemptLine(**(known | changes))


CURVE = [evaluated(28), evaluated(36, step=10), evaluated(40, step=20), evaluated(41, step=30)] + [
    evaluated(solved, step=step, attempt=2) for step, solved in ((30, 44), (40, 53), (50, 62))
]
ATTEMPTS = [
    attempt(
        1,
        end_cause="node_lost",
        signal="node event",
        node="i-0a1b2c",
        resumed_step=0,
        last_saved_step=20,
        gpu_hours=6.7,
    ),
    attempt(2, end_cause="finished", signal="outcome.json", resumed_step=20, last_saved_step=50, gpu_hours=11.26),
]


def manifest(**changes: Any) -> Manifest:
    known: dict[str, Any] = {
        "run_id": "maze-demo", "state": "succeeded", "target": 0.95, "ceiling": 1.0, "attempts": ATTEMPTS,
        "baseline": CURVE[0], "final": CURVE[-1], "best": CURVE[-1], "curve": CURVE, "gpu_hours": 17.96,
        "holdout_baseline": evaluated(193, 500, eval_set=EvalSet.HOLDOUT),
        "holdout_final": evaluated(462, 500, 50, 2, EvalSet.HOLDOUT),
        "adapters": {"final": 50, "best": 50}, "at": NOW + timedelta(hours=5),
        "objects": {
            "adapters/final/adapter_model.safetensors": FileDigest(sha256="1f" * 32, size=69_888),
            "curve.png": FileDigest(sha256="2e" * 32, size=1_000),
        },
    }  # fmt: skip
    return Manifest(**(known | changes))


def provenance(**changes: Any) -> Provenance:
    known: dict[str, Any] = {
        "run_id": "maze-demo", "owner": "arn:aws:iam::123456789012:user/r", "spec_sha256": "cd" * 32,
        "image": "skyrl@sha256:" + "ef" * 32, "task_environment": "tasks.mazes:Maze", "task_code": "git " + "4f" * 20,
        "model": "hf://owner/Model-VL-8B@main", "skyrl_version": "0.3.0", "controller_version": "0.1.0", "created_at": NOW,
    }  # fmt: skip
    return Provenance(**(known | changes))


def event(stage: Stage, **changes: Any) -> StageEvent:
    known: dict[str, Any] = {"run_id": "maze-demo", "stage": stage, "key": str(stage), "at": NOW}
    return StageEvent(**(known | changes))


# ------------------------------------------------------------------ hostile text, for hypothesis
HOSTILE = st.one_of(
    st.sampled_from(
        [
            "<!channel> wake up", "<script>alert(1)</script>", "&" * 3_000, "<" * 5_000, "a&lt;b", "`code` *bold* _it_",
            "'\"><img src=x onerror=alert(1)>", "line\nbreak\r\x1b[2Jclear", "\u202egnp.exe", "", "](http://x) |col|",
            "]]>--><svg onload=x>", "{{7*7}} ${x}", "\ud800 lone", "x" * 4_000,
        ]
    ),
    st.text(max_size=200),
    st.text(alphabet="&<>`|\n*", max_size=2_500),
)  # fmt: skip
ATTEMPT_LINES = st.builds(
    attempt,
    st.integers(1, 99),
    end_cause=st.none() | HOSTILE,
    signal=st.none() | HOSTILE,
    node=st.none() | HOSTILE,
    message=HOSTILE,
    resumed_step=st.none() | st.integers(0, 10**6),
    gpu_hours=st.floats(0, 1e6),
)
SOME_EVAL = st.builds(evaluated, st.integers(0, 64), step=st.integers(0, 400), attempt=st.integers(1, 5))
EVALS = st.none() | SOME_EVAL
STAGE_EVENTS = st.builds(
    event,
    st.sampled_from(Stage),
    run_id=HOSTILE,
    owner=st.none() | HOSTILE,
    sentence=HOSTILE,
    errors=st.lists(st.builds(FieldError, field=HOSTILE, problem=HOSTILE), max_size=50),
    attempt=st.none() | st.integers(0, 99),
    step=st.none() | st.integers(0, 10**6),
    total_steps=st.none() | st.integers(1, 10**6),
    cause=st.none() | HOSTILE,
    node=st.none() | HOSTILE,
    seconds=st.none() | st.floats(0, 1e6),
    notify=st.sampled_from(NotifyLevel),
    budget=st.none()
    | st.builds(
        BudgetUse,
        name=st.sampled_from(["wall_hours", "gpu_hours", "dollars"]),
        used=st.floats(0, 1e9),
        limit=st.floats(1e-6, 1e9),
    ),
    target=st.none() | st.floats(0.001, 1),
    log_tail=HOSTILE | st.lists(HOSTILE, max_size=5).map("\n".join),
    baseline=EVALS,
    final=EVALS,
    holdout_baseline=EVALS,
    holdout_final=EVALS,
    curve=st.lists(st.floats(allow_nan=True), max_size=200),
    attempts=st.lists(ATTEMPT_LINES, max_size=20),
    gpu_hours=st.none() | st.floats(0, 1e6),
    links=st.dictionaries(HOSTILE, HOSTILE | st.just("https://host/a?b=1&c=<2>|x"), max_size=15),
)


# ------------------------------------------------------------------ a receiver over real https
@dataclass
class Answer:
    """``status`` None closes the connection without a word; ``delay`` comes before the answer; ``trickle`` sends the
    head a byte at a time, for five seconds."""

    status: int | None = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = "ok"
    delay: float = 0.0
    trickle: bool = False


@dataclass
class Receiver:
    port: int
    ca_file: Path
    answers: list[Answer]
    posts: list[tuple[str, bytes]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/services/T0/B0/verysecret"

    @property
    def allowed(self) -> list[str]:
        return [f"localhost:{self.port}"]


@contextlib.contextmanager
def receiver(folder: Path, *answers: Answer) -> Iterator[Receiver]:
    """Answers its posts in order; the last answer is given again and again."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            here.tokens.append(self.headers.get("Authorization"))
            here.posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            answer = here.answers[min(len(here.posts), len(here.answers)) - 1]
            here.ended.wait(answer.delay)
            if answer.trickle:
                self._trickle()
            elif answer.status is not None:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body.encode())
            self.close_connection = True

        def _trickle(self) -> None:
            with contextlib.suppress(OSError):
                for _ in range(250):
                    if here.ended.wait(0.02):
                        return
                    self.wfile.write(b"H")
                    self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """The tests read ``posts`` instead."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hung up is part of the tests."""

    authority = trustme.CA()
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    here = Receiver(server.server_address[1], ca_file, list(answers) or [Answer()])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        here.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start
