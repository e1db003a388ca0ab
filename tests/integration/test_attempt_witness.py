"""What the worker remembers goes with each of its claims: no look of anybody else has to come first."""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import uuid4

from temporalio.testing import ActivityEnvironment

from activities.attempt import Attempts
from ledger import transitions
from tests.integration.ledger_steps import Books
from workflows.contract import AttemptOrder


async def test_an_attempt_on_a_ledger_that_forgot_what_the_worker_remembers_calls_nobody(books: Books) -> None:
    await books.schedule()
    known = await transitions.witness_now(books.engine)
    attempts = Attempts(
        books.engine, {}, {}, "worker", random.Random(), {"main": {"scope": "s", "rendering": "r"}},
        witness=lambda: replace(known, row_id=uuid4()),
    )  # fmt: skip
    report = await ActivityEnvironment().run(attempts.attempt, AttemptOrder("k", 1, 1))
    assert report.instruction is not None
    assert report.instruction.reason == "quarantine"
    row = await books.row()
    assert (row["state"], row["attempt"]) == ("scheduled", [])
    assert not attempts.in_flight
