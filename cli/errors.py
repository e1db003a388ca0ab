"""From an exception to an exit code and a sentence. Only what people can act on is caught here; a defect is not."""

from __future__ import annotations

import sys
import traceback
from typing import Final

from cli.exit import REFUSED, UNAVAILABLE, USAGE

DEFECT: Final = 1  # Python's own code for an uncaught exception


class CommandError(Exception):
    """An expected end of a command: its exit code, what is the matter, and what to do."""

    def __init__(self, code: int, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.remedy = remedy


def usage(what: str, remedy: str = "") -> CommandError:
    """Something that was typed, or stands in a file that was given, cannot be used."""
    return CommandError(USAGE, what, remedy)


def refused(what: str, remedy: str = "") -> CommandError:
    """A rule says no; ``what`` names it."""
    return CommandError(REFUSED, what, remedy)


def unavailable(what: str, remedy: str = "") -> CommandError:
    """Something that is needed is not there."""
    return CommandError(UNAVAILABLE, what, remedy)


def report(error: BaseException, *, debug: bool) -> int:
    """Prints what happened on standard error and returns the exit code."""
    expected = explain(error)
    if expected is None:
        if not debug:
            print(f"duly: unexpected: {type(error).__name__}: {error}", file=sys.stderr)
            print("  This is a defect of Duly. Add --debug to see where, and report it.", file=sys.stderr)
    else:
        print(f"duly: {expected.what}", file=sys.stderr)
        if expected.remedy:
            print(f"  {expected.remedy}", file=sys.stderr)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    return DEFECT if expected is None else expected.code


def explain(error: BaseException) -> CommandError | None:
    """The expected error in an exception; None for a defect. Looks only at modules that are loaded already."""
    if isinstance(error, CommandError):
        return error
    if "config.problems" in sys.modules:
        from config.problems import ConfigError, UnavailableError

        if isinstance(error, ConfigError):
            return usage(str(error))
        if isinstance(error, UnavailableError):
            return unavailable(error.what, error.remedy)
    if "stack.process" in sys.modules:
        from stack.process import StackError

        if isinstance(error, StackError):
            return CommandError(error.exit_code, str(error))
    if "sqlalchemy" in sys.modules:
        from sqlalchemy.exc import ArgumentError, DBAPIError

        if isinstance(error, ArgumentError):
            return usage("DULY_DATABASE_URL cannot be read", "Write postgresql://user@host/database")
        if isinstance(error, DBAPIError):
            return database_error(error.orig if error.orig is not None else error)
    if "psycopg" in sys.modules:
        from psycopg import Error

        if isinstance(error, Error):
            return database_error(error)
    if "temporalio.service" in sys.modules:
        from temporalio.service import RPCError

        if isinstance(error, RPCError):
            return unavailable(f"Temporal: {error.message}", 'See "./duly doctor"')
    return None


_AGAIN = "Run the command again"
# By SQLSTATE, else by its class (the first two characters).
_REMEDIES: Final[dict[str, tuple[int, str]]] = {
    "23505": (REFUSED, ""),  # the ledger's own refusals carry their hint
    "22023": (USAGE, ""),
    "P0002": (USAGE, ""),
    "42501": (REFUSED, "Log in as somebody who has the right: roles duly_app, duly_operator, duly_owner"),
    "25006": (UNAVAILABLE, "This database only reads (a standby?); point DULY_DATABASE_URL at the primary"),
    "3F000": (UNAVAILABLE, "The ledger's schema is not there: run ./duly migrate"),
    "42P01": (UNAVAILABLE, "The ledger's schema is not there or older: run ./duly migrate"),
    "42703": (UNAVAILABLE, "The ledger's schema is older than this program: run ./duly migrate"),
    "42883": (UNAVAILABLE, "The ledger's schema is older than this program: run ./duly migrate"),
    "42704": (UNAVAILABLE, "The ledger's schema is older than this program: run ./duly migrate"),
    "55P03": (UNAVAILABLE, f"Somebody holds a lock on it. {_AGAIN}"),
    "57014": (UNAVAILABLE, f"It took too long. {_AGAIN}"),
    "28": (UNAVAILABLE, "The login is refused: check user and password in DULY_DATABASE_URL"),
    "3D": (UNAVAILABLE, "Create the database, or correct DULY_DATABASE_URL"),
    "08": (UNAVAILABLE, 'Is it running? "./duly up" starts one; DULY_DATABASE_URL names another'),
    "53": (UNAVAILABLE, f"The server is short of something. {_AGAIN}"),
    "57": (UNAVAILABLE, f"The server is starting or stopping. {_AGAIN}"),
    "40": (UNAVAILABLE, f"Another transaction was in the way. {_AGAIN}"),
    "22": (USAGE, ""),  # text that cannot be kept, such as a NUL
}


def database_error(error: BaseException) -> CommandError | None:
    """Message and hint of the database, without CONTEXT (which tells of functions nobody asked about)."""
    state = getattr(error, "sqlstate", None)
    diagnosis = getattr(error, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or _last_line(error)
    hint = getattr(diagnosis, "message_hint", None) or ""
    if state is None:  # nothing came back: the connection
        return unavailable(f"the database cannot be reached: {message}", _REMEDIES["08"][1])
    found = _REMEDIES.get(state) or _REMEDIES.get(state[:2])
    if found is None:
        return None
    code, remedy = found
    return CommandError(code, message, hint or remedy)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
