"""What went wrong, in words a person can act on, with the exit code it means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every verb."""

    DONE = 0
    TRAINING_FAILED = 1
    INPUT_WRONG = 2
    NODE_UNREADY = 3
    CHECK_FAILED = 4
    INTERRUPTED = 130


class TracksideError(Exception):
    """Root of all errors that a user can act on.

    `message` says what is wrong and where, `fix` what to do about it.
    """

    exit_code = ExitCode.NODE_UNREADY

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class InputError(TracksideError):
    """The input is wrong; nothing was touched."""

    exit_code = ExitCode.INPUT_WRONG


class NodeError(TracksideError):
    """A node could not be reached or prepared."""

    exit_code = ExitCode.NODE_UNREADY
