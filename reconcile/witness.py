"""The restore guard: nothing is sent by a ledger that went back in time.

A restored copy is a perfectly good ledger that does not know what was sent since. So a row of its history is remembered
outside, in Temporal and in a file of each worker, and every claim carries it: a ledger that has lost that row grants
nothing, is quarantined, and what could have run in the gap is in doubt until evidence or a person settles it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.service import RPCError

from config.problems import UnavailableError
from ledger import transitions
from ledger.answers import Witness
from reconcile.remembered import Place

LOOK = 1.0
"""Seconds between two looks, and so the most that this machine's file is behind. One statement."""

FAR_EVERY = 10.0
"""Seconds between two writes to Temporal: a tenth of a per cent of what its server can take here."""

FAR_LIMIT = 2.0
"""Seconds for one of them: the dispatcher waits for it."""

FAR_FIRST = 15.0
"""Seconds for the first one, which a worker does not start without: more than the client's own retries take."""

BATCH = 200
"""Operations put in doubt in one transaction: a few milliseconds each, and others wait for their locks."""

RESTORED = "the ledger was restored from an older copy: "

_log = logging.getLogger("duly.witness")


@dataclass
class Guard:
    """One worker's. ``near`` is its own file, ``far`` is Temporal."""

    engine: AsyncEngine
    near: Place
    far: Place
    who: str
    witness: Witness | None = None
    """What the claims of this worker carry."""
    _next: float = 0.0
    _far_next: float = 0.0
    _kept: dict[str, Witness] = field(default_factory=dict)
    _doubted: str | None = None
    _failing: set[str] = field(default_factory=set)

    async def start(self) -> None:
        """Before anything is dispatched or polled. Raises UnavailableError for a ledger not to be served here."""
        # Asked first: a worker that makes the first witness keeps it outside before it says that it serves.
        served = (await transitions.watch(self.engine, None, self.who)).served
        found = [witness for place in (self.near, self.far) if (witness := await self._remembered(place))]
        for witness in found:
            verdict = (await transitions.watch(self.engine, witness, self.who)).verdict
            if verdict in ("lost", "other ledger") or self.witness is None:
                self.witness = witness
            if verdict == "other ledger":
                raise self._other()
        if not found and served:
            # F86 with the file gone too: nobody can say whether this copy is the newest.
            cause = (
                "no witness of this ledger is left, neither in Temporal nor on this machine: it may be an older copy"
            )
            await transitions.quarantine(self.engine, cause, self.who)
        self._far_next = time.monotonic() + FAR_EVERY
        if await self.look() is None:
            await self._keep(self.far, must=True)
            await transitions.serve(self.engine)

    async def look(self) -> str | None:
        """Why nothing may be sent, or None. Looks at most once a second; raises what the database raises, and
        UnavailableError when this is another ledger than the one that this worker serves."""
        if time.monotonic() < self._next:
            return None if self._doubted is None else f"quarantine: {self._doubted}"
        watched = await transitions.watch(self.engine, self.witness, self.who)
        self._next = time.monotonic() + LOOK
        if watched.verdict == "other ledger":
            raise self._other()
        if watched.quarantine is not None:
            return await self._quarantine(watched.quarantine)
        if self._doubted is not None:
            _log.warning("no quarantine any more: sending again", extra={"after": self._doubted})
            self._doubted = None
        if watched.moved:
            await self._moved()
        if watched.witness is not None:
            self.witness = watched.witness
        await self._keep(self.near)
        if time.monotonic() >= self._far_next:
            self._far_next = time.monotonic() + FAR_EVERY
            await self._keep(self.far)
        return None

    async def stop(self) -> None:
        """The last word, so that the next worker knows as much as this one. Never raises."""
        self._next = self._far_next = 0.0
        try:
            async with asyncio.timeout(2 * FAR_LIMIT):
                await self.look()
        except Exception as error:  # noqa: BLE001 (what was kept a moment ago stands; a shutdown goes on)
            _log.warning("the last witness was not kept", extra={"error": type(error).__name__})

    async def _remembered(self, place: Place) -> Witness | None:
        try:
            return await place.read()
        except (RPCError, OSError) as error:
            raise UnavailableError(
                f"the witness in {place.name} cannot be read ({error})",
                "Without it a restored ledger is not recognised",
            ) from None

    def _other(self) -> UnavailableError:
        kept = self.witness
        return UnavailableError(
            f"another ledger is served here: {kept.ledger_id if kept else 'unknown'}, as {self.near.name} and "
            f"{self.far.name} remember, and not the one of DULY_DATABASE_URL",
            "Give each ledger its own Temporal namespace and DULY_WITNESS_FILE: a copy must not act for its original. "
            "If that ledger is gone for good, remove the file and delete the schedule",
        )

    async def _quarantine(self, cause: str) -> str:
        if self._doubted != cause:
            _log.critical("quarantine: nothing is sent until an owner adopts this ledger", extra={"cause": cause})
            doubted = 0
            while batch := await transitions.doubt_gap(self.engine, RESTORED + cause, self.who, BATCH):
                doubted += batch
            _log.critical("what could have run in the gap is in doubt", extra={"operations": doubted})
            self._doubted = cause
        return f"quarantine: {cause}"

    async def _moved(self) -> None:
        """A promotion or a recovery (F83): claims wait until what was in hand is in doubt."""
        doubted = 0
        while batch := await transitions.doubt_moved(self.engine, self.who, BATCH):
            doubted += batch
        _log.warning("the database was promoted or recovered", extra={"operations_in_doubt": doubted})

    async def _keep(self, place: Place, *, must: bool = False) -> None:
        """Only what changed. Trouble is said once; at the start it is a reason not to."""
        witness = self.witness
        if witness is None or self._kept.get(place.name) == witness:
            return
        try:
            async with asyncio.timeout(FAR_FIRST if must else FAR_LIMIT):
                await place.write(witness)
        except (RPCError, OSError, TimeoutError) as error:
            if must:
                raise UnavailableError(
                    f"the witness cannot be kept in {place.name} ({str(error) or 'no answer'})",
                    "Without it a restored ledger is not recognised; the worker's identity needs to write schedules",
                ) from None
            if place.name not in self._failing:
                _log.error("the witness is not kept", extra={"place": place.name, "error": str(error)})
            self._failing.add(place.name)
        else:
            self._kept[place.name] = witness
            if place.name in self._failing:
                _log.warning("the witness is kept again", extra={"place": place.name})
            self._failing.discard(place.name)
