"""A payload and a credential occur in the ledger and at the provider, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from activities import attempt as attempts
from provider.port import Call, Outcome
from stack.local import Stack
from tests.harness import Site, wait_for
from tests.workbench import Bench, FakeAdapter, eventually

ECHO = {"do": "status", "headers": {"Content-Type": "application/json"}}


@dataclass(frozen=True)
class Canaries:
    """A text in each payload and the secret of the connection; ``control`` is a key, which may be seen everywhere."""

    site: Site
    text: str
    secret: str
    control: str

    def payload(self) -> dict[str, Any]:
        return {"n": 1, "name": self.text, "deeper": [{"still": f"before {self.text} after"}]}

    def schedule(self, name: str, **told: Any) -> str:
        """An operation whose provider says everything that it was given back to us, if it is told to answer."""
        (key,) = self.site.schedule(name, payload=self.payload())
        if told:
            body = f'{{"error": "no {self.text} with Bearer {self.secret}"}}'
            self.site.sandbox.tell({**ECHO, "body": body, **told}, key=key)
        return key

    def found_in(self, data: bytes) -> set[str]:
        """Which of them occur, also when packed as base64."""
        return {
            name for name, text in (("text", self.text), ("secret", self.secret), ("control", self.control))
            if any(form in data for form in forms(text.encode()))
        }  # fmt: skip


def forms(text: bytes) -> list[bytes]:
    """As it is, and as base64 at each of the three alignments (without the characters that neighbours change)."""
    return [text, *(base64.b64encode(b"\0" * shift + text)[4:-4] for shift in range(3))]


@pytest.fixture
def canaries(site: Site) -> Canaries:
    made = Canaries(site, f"canary{uuid.uuid4().hex}", f"secret{uuid.uuid4().hex}", site.key("control"))
    site.configure(more='[connections.main.headers]\nAuthorization = "Bearer ${NOTE_TOKEN}"')
    site.environment["NOTE_TOKEN"] = made.secret
    return made


def stack_files(stack: Stack) -> dict[Path, bytes]:
    """Temporal's database (with what is still in its write-ahead log) and what every program of the stack printed."""
    found = [*stack.home.glob("temporal.db*"), *(stack.home / "logs").iterdir()]
    return {path: path.read_bytes() for path in found}


def assert_secret(canaries: Canaries, stack: Stack, *texts: str) -> None:
    files = stack_files(stack)
    temporal = b"".join(data for path, data in files.items() if path.name.startswith("temporal.db"))
    assert "control" in canaries.found_in(temporal)  # the search finds what is there
    assert {path.name: found for path, data in files.items() if (found := canaries.found_in(data) - {"control"})} == {}
    for text in texts:
        assert canaries.found_in(text.encode()) <= {"control"}


def test_neither_occurs_in_temporals_database_nor_in_any_log_of_a_real_worker(
    canaries: Canaries, stack_env: Stack
) -> None:
    site = canaries.site
    delivered = canaries.schedule("control")
    rejected, unknown, denied = (
        canaries.schedule(f"answer-{status}", status=status) for status in (422, 500, 401)
    )  # fmt: skip
    lost = canaries.schedule("lost")
    site.sandbox.tell("commit_then_close", key=lost)
    worker = site.worker(DULY_LOG_LEVEL="DEBUG")
    for key, state in ((delivered, "delivered"), (rejected, "rejected"), (unknown, "unknown"), (lost, "unknown")):
        site.wait_state(key, state)
    wait_for(lambda: site.sql("SELECT name FROM duly.connection WHERE held IS NOT NULL"), "the connection to be held")
    site.wait_event(lost, "ACTIVITY_TASK_COMPLETED")
    assert site.attempts(denied)[0]["outcome"] == "denied"
    worker.stop()
    (effect,) = site.sandbox.effects(key=delivered)[delivered]
    assert canaries.text in str(effect["body"])  # at the provider it is
    # What the provider said is kept, without what it was given.
    for key in (rejected, unknown, denied):
        assert canaries.found_in(site.attempts(key)[0]["detail"].encode()) == set()
    assert_secret(canaries, stack_env, worker.output(), str(site.sql("SELECT * FROM duly.connection")))
    assert "ready" in worker.output()


class Quotes(FakeAdapter):
    """An adapter with a bug, whose message quotes all that it has."""

    async def perform(self, call: Call) -> Outcome:
        raise ValueError(f"cannot send {call.payload} of {call}")


async def test_neither_occurs_when_an_adapter_raises_an_error_that_quotes_them(
    canaries: Canaries, bench: Bench, stack_env: Stack, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    key = canaries.schedule("control")
    async with bench.working(adapters={"main": Quotes()}):
        await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
    assert "ValueError at test_secrecy.py:" in bench.site.attempts(key)[0]["detail"]
    assert "defect in an adapter" in caplog.text
    assert_secret(canaries, stack_env, caplog.text, *capfd.readouterr())


async def test_neither_occurs_when_the_database_is_away_and_temporal_keeps_the_reply(
    canaries: Canaries, bench: Bench, stack_env: Stack, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(attempts, "RECORD_PATIENCE", 0.5)
    key = canaries.schedule("control", status=422)
    real = attempts.Attempts._call

    async def call(self: attempts.Attempts, *arguments: Any) -> Any:
        reply = await real(self, *arguments)
        await asyncio.to_thread(stack_env.stop_postgres, kill=True)
        return reply

    monkeypatch.setattr(attempts.Attempts, "_call", call)
    try:
        async with bench.working():
            await eventually(lambda: "reply kept in the workflow" in caplog.text, "the reply to go to the workflow")
            monkeypatch.undo()
            await asyncio.to_thread(stack_env.start_postgres)
            await bench.wait_state(key, "rejected")
    finally:
        if stack_env.postgres is None:
            await asyncio.to_thread(stack_env.start_postgres)
    assert_secret(canaries, stack_env, caplog.text, *capfd.readouterr())


async def test_neither_occurs_when_the_database_refuses_a_row_and_quotes_it(
    canaries: Canaries, bench: Bench, stack_env: Stack, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(attempts, "RECORD_PATIENCE", 0.5)
    key = canaries.schedule("control")
    # Stands for a bug in the ledger: Postgres says "Failing row contains (…)", with the payload.
    bench.site.sql("ALTER TABLE duly.operation ADD CONSTRAINT bug CHECK (state <> 'delivered') NOT VALID")
    async with bench.working():
        handle = bench.client.get_workflow_handle(key)

        async def failed_and_retried() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            return any(one.activity_type.name == "record" and one.attempt > 1 for one in pending)

        await eventually(lambda: bench.site.sandbox.requests(key=key), "the request")
        await eventually(failed_and_retried, "the record to fail and to be tried again")
        bench.site.sql("ALTER TABLE duly.operation DROP CONSTRAINT bug")
        await bench.wait_state(key, "delivered")
    assert_secret(canaries, stack_env, caplog.text, *capfd.readouterr())
