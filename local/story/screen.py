"""The live timeline in the terminal: one line for everything that happens, and one line of progress below them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_PLAIN_PROGRESS_EVERY = 5.0
"""Seconds between lines of progress where lines cannot be rewritten."""

_COLOURS = {
    "you": "bold cyan",
    "stack": "dim",
    "fault": "bold red",
    "hyperpod": "red",
    "job": "green",
    "slack": "magenta",
    "check": "bold green",
    "signal": "yellow",
}
_BAR_WIDTH = 24


@dataclass(frozen=True)
class ProgressLine:
    """What the line of progress shows. ``success`` is a share of 1, ``eta`` in seconds."""

    attempt: int
    phase: str
    step: int
    total: int
    success: float | None = None
    eta: float | None = None

    def text(self) -> str:
        done = round(_BAR_WIDTH * self.step / self.total)
        bar = "█" * done + "░" * (_BAR_WIDTH - done)
        parts = [f"attempt {self.attempt}", bar, f"step {self.step}/{self.total}", f"{self.phase:<10}"]
        if self.success is not None:
            parts.append(f"success {self.success:.1%}")
        if self.eta is not None:
            parts.append(f"about {self.eta:.0f} s left")
        return "  ".join(parts)


class Screen:
    """Prints the story. Where stdout is no terminal, or NO_COLOR is set, it prints plain lines and nothing else.

    The clock starts when the screen is made: the first column is seconds since then.
    """

    def __init__(self, out: TextIO | None = None, live: bool | None = None) -> None:
        stream = sys.stdout if out is None else out
        wanted = stream.isatty() and not os.environ.get("NO_COLOR") if live is None else live
        width = None if wanted else 160
        self._console = Console(file=stream, highlight=False, no_color=not wanted, width=width, soft_wrap=not wanted)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True) if wanted else None
        self._started = time.monotonic()
        self._started_wall = time.time()
        self._last_progress: ProgressLine | None = None
        self._last_printed = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Take the line of progress away; lines may still be printed."""
        if self._live is not None and self._live.is_started:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the screen was made."""
        return time.monotonic() - self._started

    def since_start(self, timestamp: float) -> float:
        """Seconds from the start to a moment given as seconds since the epoch."""
        return timestamp - self._started_wall

    def line(self, actor: str, what: str, signal: str | None = None, at: float | None = None) -> None:
        """One thing that happened: ``at`` seconds after the start (default now), who, what, and the signal for it."""
        when = f"{self.seconds if at is None else at:7.1f} s"
        who = Text(f"{actor:<9}", style=_COLOURS.get(actor, "blue"))
        said = Text(what)
        if signal:
            said.append(f"   <- {signal}", style="yellow")
        if self._live is None:
            self._console.print(Text("  ").join([Text(when), who, said]))
            return
        row = Table.grid(padding=(0, 2, 0, 0))  # a long text goes on below itself, not below the clock
        row.add_row(Text(when, style="dim"), who, said)
        self._console.print(row)

    def text(self, text: str = "", style: str = "") -> None:
        """Text of its own, outside the timeline; several lines are fine."""
        self._console.print(escape(text), style=style or None)

    def heading(self, text: str) -> None:
        self._console.print()
        self._console.print(escape(text), style="bold")

    def progress(self, progress: ProgressLine) -> None:
        """Show where training is."""
        if progress == self._last_progress:
            return
        before, self._last_progress = self._last_progress, progress
        if self._live is not None:
            self._live.update(
                Text(f"             {progress.text()}", style="bold green", no_wrap=True, overflow="ellipsis")
            )
            return
        moved = before is None or (before.attempt, before.step) != (progress.attempt, progress.step)
        if moved and self.seconds - self._last_printed >= _PLAIN_PROGRESS_EVERY:
            self._last_printed = self.seconds
            self.line("job", progress.text())

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
        """A table; plain text of the same shape where there is no terminal."""
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(_marked(cell) for cell in row))
        self._console.print(table)


def _marked(cell: str) -> str:
    if cell == "ok":
        return "[bold green]ok[/]"
    if cell == "NOT OK":
        return "[bold red]NOT OK[/]"
    return escape(cell)
