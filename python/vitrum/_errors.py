"""What can go wrong, by the status of the C interface, which is the exit code of the command line."""
from __future__ import annotations

import sys


class VitrumError(Exception):
    """Everything that Vitrum reports, in one line that names the file and the remedy."""


class FailedError(VitrumError, RuntimeError):
    """The work itself failed."""


class UsageError(VitrumError, ValueError):
    """An argument that makes no sense."""


class InputError(VitrumError, ValueError):
    """A file, model or image that cannot be used."""


class ExhaustedError(VitrumError, MemoryError):
    """Memory or disk ran out."""


_BY_STATUS: dict[int, type[VitrumError]] = {2: UsageError, 3: InputError, 4: ExhaustedError}


def error_of(status: int, text: str) -> VitrumError:
    """The exception for a status (or exit code) that is not 0."""
    return _BY_STATUS.get(status, FailedError)(text)


def remark(error: VitrumError, text: str) -> None:
    """Adds a line to what a traceback shows (Python 3.11 and later)."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
