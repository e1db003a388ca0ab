"""What most commands need: the environment, an engine that is closed again, the ledger's clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from config.environment import Environment

T = TypeVar("T")

NUDGE_SECONDS = 2.0  # a person waits for it, and it carries no truth


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs the body of a command; log lines of libraries go to standard error."""
    from config.logs import configure

    # Information is for services; a command says what it has to say itself.
    level = os.environ.get("DULY_LOG_LEVEL", "WARNING").upper()
    configure(level if level in ("DEBUG", "ERROR", "CRITICAL") else "WARNING")
    return asyncio.run(work)


def environment() -> Environment:
    """Raises ConfigError."""
    from config.environment import Environment

    return Environment.read()


@asynccontextmanager
async def ledger(env: Environment, *, pool_size: int = 2) -> AsyncIterator[AsyncEngine]:
    """An engine on the database of this environment. Raises UnavailableError when nothing names one."""
    from ledger.database import connect

    engine = connect(env.database(), pool_size=pool_size)
    try:
        yield engine
    finally:
        await engine.dispose()


async def ledger_now(connection: AsyncConnection) -> datetime:
    """The ledger's clock: what `now` and `+10m` are counted from."""
    from sqlalchemy import text

    now: datetime = (await connection.execute(text("SELECT duly.now()"))).scalar_one()
    return now


async def nudge(env: Environment, key: str, state: str) -> str:
    """Asks the workflow to look at the ledger now. Returns a note for people; never raises for what Temporal does."""
    from temporalio.client import RetryConfig
    from temporalio.service import RPCError, RPCStatusCode

    from config.problems import ConfigError, UnavailableError
    from config.temporal import connect
    from ledger.states import ENDINGS

    later = "it holds" if state in ENDINGS else "it holds; the sweep will find it"
    try:
        async with asyncio.timeout(NUDGE_SECONDS):
            # One try: a server that is away is noticed at once instead of in ten seconds.
            client = await connect(env, retry_config=RetryConfig(max_retries=1, max_elapsed_time_millis=1000))
            await client.get_workflow_handle(key).signal("nudge")
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return f"no workflow runs for it now: {later}"
        return f"Temporal was not told ({error.message}): {later}"
    except (UnavailableError, ConfigError) as error:
        return f"Temporal was not told ({str(error).splitlines()[0]}): {later}"
    except TimeoutError:
        return f"Temporal was not told (no answer in {NUDGE_SECONDS:.0f} s): {later}"
    return "its workflow was told"
