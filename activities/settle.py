"""Asking the ledger, and handing it what a signal said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities.instructions import instruction
from ledger import decisions, transitions
from provider.text import clean
from workflows import contract

CHOICES = frozenset(
    {"delivered", "not delivered", "new epoch", "abandon", "release", "extend", "reopen", "correct"}
)
"""What the ledger can be asked for; an underscore or a hyphen for the space is understood too."""


@dataclass(frozen=True, slots=True)
class Settling:
    """The ledger-only activities."""

    engine: AsyncEngine
    client: Client
    worker: str

    @activity.defn(name="instruct")
    async def instruct(self, question: contract.Question) -> contract.Instruction:
        """See ``workflows.contract.instruct``."""
        return instruction(await transitions.instruct(self.engine, question.key, question.generation, self.worker))

    @activity.defn(name="settle")
    async def settle(self, received: contract.Received) -> contract.Settled:
        """See ``workflows.contract.settle``. The identity in the history is a label, never a right."""
        name, arguments = clean(received.name, limit=200), [_read(argument) for argument in received.arguments]
        said = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], dict) else {}
        asked = str(said.get("choice", "")).strip().lower().replace("_", " ").replace("-", " ")
        choice = asked if received.name == contract.RESOLVE and asked in CHOICES else None
        decided = await decisions.decide_by_temporal(
            self.engine, key=received.key, choice=choice, reason=_text(said.get("reason")),
            reference=_text(said.get("reference")),
            raw={"signal": name, "arguments": clean(json.dumps(arguments, ensure_ascii=False), limit=4000)},
            label=await self._identity(received), who=self.worker,
        )  # fmt: skip
        return contract.Settled(decided.accepted, decided.answer)

    async def _identity(self, received: contract.Received) -> str | None:
        info = activity.info()
        handle = self.client.get_workflow_handle(received.key, run_id=info.workflow_run_id)
        left = received.number
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                meta = event.workflow_execution_update_accepted_event_attributes.accepted_request.meta
                if received.update_id and meta.update_id == received.update_id:
                    return clean(meta.identity, limit=200) or None
            elif received.update_id:
                continue
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                left -= signal.signal_name == received.name
                if not left:
                    return clean(signal.identity, limit=200) or None
        return None


def _read(argument: str) -> Any:
    """What an argument says, also when it is JSON within a text; else the text as it came."""
    value: Any = argument
    for _ in range(2):
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            break
    return value


def _text(value: object) -> str | None:
    return clean(value, limit=2000) if isinstance(value, str) else None
