"""The sweep as a loop in every worker: it wakes exactly when the next row is due, and polls in between."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from config.problems import UnavailableError
from ledger import queries
from reconcile.sweep import Sweep
from reconcile.witness import Guard

POLL = 0.25
"""Seconds between looks for rows that were scheduled to be due at once. Two statements a look: about half a percent
of a core."""

TROUBLE_PAUSE = 1.0
"""Seconds before the next try after trouble with Temporal or the database."""

_log = logging.getLogger("duly.dispatcher")


@dataclass
class Dispatcher:
    """Runs until ``stop`` is set. ``trouble``: what it cannot do at the moment; ``held``: why nothing may be sent."""

    sweep: Sweep
    guard: Guard | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str | None = None
    held: str | None = None

    async def run(self) -> None:
        """Sweep until stopped. Only another ledger in the place of ours ends the loop: UnavailableError."""
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
            if self.guard is not None:
                # In quarantine the sweeps go on: what is in doubt is looked up, and no claim is granted.
                self.held = await self.guard.look()
            wait_ms = (await queries.next_wake(self.sweep.engine)).wait_ms
            if wait_ms != 0:
                return POLL if wait_ms is None else min(POLL, wait_ms / 1000)
            report = await self.sweep.once()
        except UnavailableError:
            raise
        except (SQLAlchemyError, OSError) as error:
            # The class only: a database error's text may carry data.
            return self._say(f"the ledger is away: {type(error).__name__}")
        except Exception as error:  # noqa: BLE001 (a worker that looks well and starts nothing is the worst of all)
            return self._say(f"a defect of ours: {type(error).__name__}")
        if report.broker_trouble:
            return self._say(f"Temporal is away: {report.broker_trouble}")
        if self.trouble:
            _log.info("dispatching again", extra={"after": self.trouble})
            self.trouble = None
        # Rows are overdue and none may be taken (too many in hand): look again when some were claimed.
        return 0.0 if report.taken else POLL

    def _say(self, trouble: str) -> float:
        if trouble != self.trouble:
            _log.warning("not dispatching", extra={"trouble": trouble})
        self.trouble = trouble
        return TROUBLE_PAUSE
