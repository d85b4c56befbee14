"""Exit codes after sysexits, and the one error type that carries them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    USAGE = 64
    BAD_DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    SOFTWARE = 70
    TEMPORARY = 75
    NO_PERMISSION = 77
    CONFIGURATION = 78


class CliError(Exception):
    """What a person reads on stderr, and the exit code. ``lines`` are details, one a line."""

    def __init__(self, exit_code: Exit, message: str, lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.lines = lines
