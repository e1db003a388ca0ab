"""What Temporal may keep of an error: its class and where it was raised, never its text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError


@contextmanager
def quoting_nothing() -> Iterator[None]:
    """Replaces what is raised inside. Its text may quote the payload: Postgres shows rows that a constraint refused."""
    try:
        yield
    except ApplicationError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever it is)
        code = getattr(getattr(error, "orig", None), "sqlstate", None)
        what = f"{type(error).__name__} {code}" if code else type(error).__name__
        raise ApplicationError(f"{what} at {place(error)}", type=type(error).__name__) from None


def place(error: BaseException) -> str:
    """File and line where it was raised: enough to find it, and it quotes no data."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return (
        "?"
        if traceback is None
        else f"{traceback.tb_frame.f_code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}"
    )
