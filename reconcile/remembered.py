"""Where the witness is kept outside the ledger: a file on this machine, and the note of a schedule in Temporal."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol
from uuid import UUID

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.service import RPCError, RPCStatusCode

from ledger.answers import Witness
from ledger.transitions import as_json

SCHEDULE = "duly-witness"
"""Id of the schedule whose note is the witness. It has no times and is paused, so that it never starts anything."""

_log = logging.getLogger("duly.witness")


class Place(Protocol):
    """One place that remembers. Both raise OSError or RPCError when it cannot be reached."""

    @property
    def name(self) -> str:
        """For people."""

    async def read(self) -> Witness | None:
        """None: nothing is kept there."""

    async def write(self, witness: Witness) -> None:
        """Instead of what was there."""


@dataclass(frozen=True, slots=True)
class InFile:
    """Replaced as a whole and on the disk before ``write`` returns: it survives a power cut."""

    path: Path

    @property
    def name(self) -> str:
        """For people."""
        return str(self.path)

    async def read(self) -> Witness | None:
        """None as well for a file that is not ours."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        return _decoded(text, self.name)

    async def write(self, witness: Witness) -> None:
        """A millisecond or two on the event loop, once a second at most: less than handing it to a thread and back."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with new.open("w", encoding="utf-8") as file:
            file.write(_encoded(witness) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True, slots=True)
class InTemporal:
    """A schedule needs no worker, has no retention, grows no history that anybody sees, and stands in the web UI."""

    client: Client

    @property
    def name(self) -> str:
        """For people."""
        return f"Temporal (schedule {SCHEDULE} in namespace {self.client.namespace})"

    async def read(self) -> Witness | None:
        """None as well for a note that somebody wrote over."""
        try:
            description = await self.client.get_schedule_handle(SCHEDULE).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        return _decoded(description.schedule.state.note or "", self.name)

    async def write(self, witness: Witness) -> None:
        """Pausing again replaces the note: one call, 10 ms. The first time it is made."""
        note = _encoded(witness)
        handle = self.client.get_schedule_handle(SCHEDULE)
        try:
            await handle.pause(note=note)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            try:
                await self.client.create_schedule(SCHEDULE, _schedule(note))
            except ScheduleAlreadyRunningError:  # another worker was faster
                await handle.pause(note=note)


def _schedule(note: str) -> Schedule:
    # An action must be named. Should somebody trigger it by hand, it ends within a second, on a queue of nobody.
    action = ScheduleActionStartWorkflow(
        SCHEDULE, id=SCHEDULE, task_queue=SCHEDULE, execution_timeout=timedelta(seconds=1)
    )
    return Schedule(action=action, spec=ScheduleSpec(), state=ScheduleState(note=note, paused=True))


def _encoded(witness: Witness) -> str:
    return json.dumps(as_json(witness))


def _decoded(text: str, place: str) -> Witness | None:
    try:
        kept = json.loads(text)
        return Witness(
            ledger_id=UUID(kept["ledger_id"]),
            seq=None if kept["seq"] is None else int(kept["seq"]),
            row_id=None if kept["row_id"] is None else UUID(kept["row_id"]),
            timeline=str(kept["timeline"]),
            at=datetime.fromisoformat(kept["at"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        _log.warning("what is kept there is no witness", extra={"place": place})
        return None
