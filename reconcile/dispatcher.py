"""The sweep as a loop in every worker: it wakes exactly when the next row is due, and polls in between."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from ledger import queries
from reconcile.sweep import Sweep

POLL = 0.25
"""Seconds between looks for rows that were scheduled to be due at once. Two statements a look: about half a percent
of a core."""

LOOK_LIMIT = 5.0
"""Seconds for one look, which takes milliseconds; connecting may take as many. A host that is gone sends no error."""

SWEEP_LIMIT = 30.0
"""Seconds for one sweep: a batch of 100 starts at 10 at once and at most 2 s each, and its statements."""

TROUBLE_PAUSE = 1.0
"""Seconds before the next try after trouble with Temporal or the database."""

_log = logging.getLogger("duly.dispatcher")


@dataclass
class Dispatcher:
    """Runs until ``stop`` is set. ``trouble`` says what it cannot do at the moment, for the readiness answer."""

    sweep: Sweep
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str | None = None

    async def run(self) -> None:
        """Sweep until stopped; no trouble ends the loop."""
        while not self.stop.is_set():
            pause = await self._turn()
            if pause:
                try:
                    await asyncio.wait_for(self.stop.wait(), pause)
                except TimeoutError:
                    continue

    async def _turn(self) -> float:
        """Sweep if something is due, and say how many seconds to wait before the next look."""
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                wait_ms = (await queries.next_wake(self.sweep.engine)).wait_ms
            if wait_ms != 0:
                self._well()
                return POLL if wait_ms is None else min(POLL, wait_ms / 1000)
            async with asyncio.timeout(SWEEP_LIMIT):
                report = await self.sweep.once()
        except TimeoutError:
            # The other connections lead to the same place: nobody in this process should wait for them, too.
            await self.sweep.engine.dispose()
            return self._say("the ledger does not answer")
        except (SQLAlchemyError, OSError) as error:
            # The class only: a database error's text may carry data.
            return self._say(f"the ledger is away: {type(error).__name__}")
        except Exception as error:  # noqa: BLE001 (a worker that looks well and starts nothing is the worst of all)
            return self._say(f"a defect of ours: {type(error).__name__}")
        if report.broker_trouble:
            return self._say(f"Temporal is away: {report.broker_trouble}")
        self._well()
        # Rows are overdue and none may be taken (too many in hand): look again when some were claimed.
        return 0.0 if report.taken else POLL

    def _well(self) -> None:
        if self.trouble:
            _log.info("dispatching again", extra={"after": self.trouble})
        self.trouble = None

    def _say(self, trouble: str) -> float:
        if trouble != self.trouble:
            _log.warning("not dispatching", extra={"trouble": trouble})
        self.trouble = trouble
        return TROUBLE_PAUSE
