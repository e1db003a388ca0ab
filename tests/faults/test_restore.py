"""The ledger goes back in time, as a database does that somebody restores. Nothing that may have run is sent again.

The copy is made and put back by Postgres itself, database by database, on the shared server, so that many cases are
quick; test_base_backup.py does the same to a whole server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from reconcile.remembered import SCHEDULE
from stack.process import Process
from tests.faults.checks import check
from tests.harness import Site, make_namespace, wait_for

FAR = timedelta(days=2)
REFUSED = 4  # exit code of a worker that must not serve this ledger


def name_of(site: Site) -> str:
    """Of its database."""
    return site.database.partition("?")[0].rpartition("/")[2]


class Copy:
    """A copy of a site's database, to be put in its place later. It is made while nobody is connected."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.original = name_of(site)
        self.name = f"copy_{uuid.uuid4().hex[:12]}"
        self._sql(f"ALTER DATABASE {self.original} ALLOW_CONNECTIONS false")
        self._sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{self.original}'")
        self._sql(f"CREATE DATABASE {self.name} TEMPLATE {self.original}")
        self._sql(f"ALTER DATABASE {self.original} ALLOW_CONNECTIONS true")

    def restore(self) -> None:
        """Behind whoever is connected."""
        self.put_in_place_of(self.original)

    def put_in_place_of(self, name: str) -> None:
        """The same with any database."""
        self._sql(f"DROP DATABASE {name} WITH (FORCE)")
        self._sql(f"ALTER DATABASE {self.name} RENAME TO {name}")

    def _sql(self, statement: str) -> None:
        with psycopg.connect(self.site.stack.database_url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())


def quarantine(site: Site) -> str | None:
    (row,) = site.sql("SELECT quarantine FROM duly.ledger")
    return None if row["quarantine"] is None else str(row["quarantine"])


def wait_quarantine(site: Site) -> str:
    return str(wait_for(lambda: _try(lambda: quarantine(site)), "the quarantine"))


def _try(ask: Any) -> Any:
    try:
        return ask()
    except psycopg.Error:  # the database is being replaced
        return None


def adopt(site: Site) -> None:
    (row,) = site.sql("SELECT done FROM duly.adopt('restored on purpose, says the test')")
    assert row["done"]


def ready(worker: Process) -> dict[str, Any]:
    """What the health endpoint answers; its port is in the worker's log."""
    (port,) = re.findall(r'"health_port": (\d+)', worker.output())
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:  # seconds
            return dict(json.load(answer))
    except HTTPError as error:
        return dict(json.load(error))


def in_temporal(site: Site) -> dict[str, Any]:
    """What Temporal keeps, as anybody sees it with its own command."""
    shown = json.loads(site.temporal("schedule", "describe", "--schedule-id", SCHEDULE, "--output", "json"))
    assert shown["schedule"]["state"]["paused"]
    return dict(json.loads(shown["schedule"]["state"]["notes"]))


def in_file(site: Site) -> dict[str, Any]:
    return dict(json.loads(Path(site.environment["DULY_WITNESS_FILE"]).read_text(encoding="utf-8")))


def newest(site: Site) -> int:
    (row,) = site.sql("SELECT max(seq) AS seq FROM duly.history")
    return int(row["seq"])


def copied(site: Site, *names: str) -> tuple[Copy, Process, list[str]]:
    """Scheduled, copied, and then delivered: the copy does not know that they ran. Their worker was here before."""
    worker = site.worker()
    os.kill(worker.pid, signal.SIGSTOP)
    keys = site.schedule(*names, deadline=FAR)
    copy = Copy(site)
    os.kill(worker.pid, signal.SIGCONT)
    for key in keys:
        site.wait_state(key, "delivered")
    wait_for(lambda: in_file(site)["seq"] == newest(site), "the witness to follow")
    return copy, worker, keys


def moved_to(site: Site, *, temporal: bool, file: bool) -> None:
    """Temporal's data is gone, or the worker moves to a machine without the file."""
    if temporal:
        site.namespace = site.environment["TEMPORAL_NAMESPACE"] = make_namespace(site.stack)
    if file:
        site.environment["DULY_WITNESS_FILE"] = str(site.folder / "another machine" / "witness.json")


def nothing_sent_again(site: Site, *keys: str) -> None:
    for key in keys:
        assert len(site.sandbox.requests(key=key)) == 1, key
    check(site)


def test_a_first_start_begins_with_what_is_scheduled_and_keeps_its_witness_in_both_places(site: Site) -> None:
    (key,) = site.schedule("op")  # there is history, and no witness of it: nobody ever took one
    workers = [site.worker(wait=False) for _ in range(2)]  # at once: neither takes the other's for a restored ledger's
    site.wait_state(key, "delivered")
    wait_for(lambda: in_file(site)["seq"] == newest(site), "the file to follow")
    assert quarantine(site) is None
    for worker in workers:
        worker.stop()
    # A worker that ends leaves its last word in Temporal too.
    assert in_temporal(site) == {**in_file(site), "at": in_temporal(site)["at"]}
    assert in_temporal(site)["seq"] == newest(site)
    assert (
        json.loads(site.temporal("workflow", "count", "--output", "json"))["count"] == "1"
    )  # the schedule runs nothing


def test_a_copy_restored_behind_a_running_worker_sends_nothing_again_and_goes_on_when_it_is_adopted(site: Site) -> None:
    """F85: restored to a copy of before the claim, Temporal intact."""
    (later,) = site.schedule("later", due=timedelta(hours=1), deadline=FAR)
    copy, worker, ran = copied(site, "a", "b")
    copy.restore()

    assert "went back in time" in wait_quarantine(site)
    for key in ran:
        row = site.wait_state(key, "unknown")
        assert (
            "restored from an older copy"
            in site.sql("SELECT why FROM duly.history WHERE key = %s ORDER BY seq DESC LIMIT 1", key)[0]["why"]
        )
        assert row["attempts"] == 1
    (alert,) = site.sql("SELECT why FROM duly.alerts WHERE alert = 'quarantine'")
    assert "went back in time" in alert["why"]
    answer = wait_for(lambda: (a := ready(worker)).get("status") == "not ready" and a, "the worker to say so")
    assert answer["why"].startswith("quarantine")
    (held,) = site.schedule("held", deadline=FAR)
    wait_for(lambda: site.operation(held)["waiting_for"] == "quarantine", "the new one to be held")
    assert site.sandbox.requests(key=held) == []
    kept = in_file(site)
    assert kept["seq"] > newest(site)  # what is remembered stays: the right copy would still be recognised by it

    adopt(site)
    site.much_later()  # past every hold
    site.wait_state(held, "delivered")
    assert site.state(later) == "delivered"
    assert [site.state(key) for key in ran] == ["unknown", "unknown"]
    wait_for(lambda: ready(worker).get("status") == "ready", "the worker to be ready")
    # Each has a workflow again, over the closed run of before: somebody looks after the doubt.
    for key in ran:
        assert "WORKFLOW_EXECUTION_COMPLETED" not in site.events(key)
    site.sql("SELECT duly.decide(%s, 'delivered', 'seen at the provider', reference => 'r-1')", ran[0])
    site.temporal("workflow", "signal", "--workflow-id", ran[0], "--name", "nudge")
    wait_for(lambda: "WORKFLOW_EXECUTION_COMPLETED" in site.events(ran[0]), "its workflow to end")
    assert [site.state(key) for key in ran] == ["delivered", "unknown"]
    nothing_sent_again(site, *ran, held, later)
    worker.stop()
    assert in_file(site)["seq"] == in_temporal(site)["seq"] == newest(site)
    site.worker()  # and a restart finds nothing wrong
    assert quarantine(site) is None


@pytest.mark.parametrize(
    ("temporal", "file", "cause"),
    [
        (True, False, "went back in time"),  # F86: the workflows are gone as well, the file remembers
        (False, True, "went back in time"),  # Temporal remembers
        (True, True, "no witness"),  # nobody does: it may be an older copy
    ],
    ids=["file only", "Temporal only", "neither"],
)
def test_a_worker_that_starts_on_an_older_copy_sends_nothing_of_the_gap(
    site: Site, temporal: bool, file: bool, cause: str
) -> None:
    copy, worker, ran = copied(site, "a", "b")
    worker.stop()
    copy.restore()
    moved_to(site, temporal=temporal, file=file)
    worker = site.worker(wait=False)
    assert cause in wait_quarantine(site)
    for key in ran:
        site.wait_state(key, "unknown")
    adopt(site)
    site.much_later()
    nothing_sent_again(site, *ran)
    worker.stop()
    assert in_file(site)["seq"] == in_temporal(site)["seq"] == newest(site)
    assert quarantine(site) is None


def test_losing_one_of_the_two_places_alone_stops_nothing(site: Site) -> None:
    site.worker().stop()
    for temporal, file in ((True, False), (False, True)):
        moved_to(site, temporal=temporal, file=file)
        worker = site.worker()
        (key,) = site.schedule(f"op-{temporal}", deadline=FAR)
        site.wait_state(key, "delivered")
        worker.stop()
        assert quarantine(site) is None
        assert in_file(site)["seq"] == in_temporal(site)["seq"] == newest(site)  # both know again


def test_a_reply_to_a_call_that_was_out_during_the_restore_settles_it(site: Site) -> None:
    site.configure(call_limit="8s")
    worker = site.worker()
    os.kill(worker.pid, signal.SIGSTOP)
    (key,) = site.schedule("op", deadline=FAR)
    site.sandbox.tell("slow:4", key=key)  # seconds: longer than the restore
    copy = Copy(site)
    os.kill(worker.pid, signal.SIGCONT)
    site.wait_request(key)
    copy.restore()
    # Within a second the witness may be older than the copy; then the reply itself is the proof.
    wait_quarantine(site)
    row = site.wait_state(key, "delivered")
    assert row["settled_by"] == "reply"
    assert site.history(key) == ["scheduled", "unknown", "delivered"]
    nothing_sent_again(site, key)


def test_another_ledger_in_the_same_namespace_is_not_served(site: Site, other: Site) -> None:
    site.worker().stop()
    other.environment["TEMPORAL_NAMESPACE"] = site.namespace
    (key,) = other.schedule("op")
    worker = other.worker(wait=False)
    assert worker.wait(60) == REFUSED  # seconds
    assert "another ledger is served here" in worker.output()
    assert other.sandbox.requests(key=key) == []
    assert quarantine(other) is None  # it is somebody's good ledger


def test_a_worker_ends_when_another_ledger_takes_the_place_of_its_own(site: Site, other: Site) -> None:
    (key,) = other.schedule("op")
    worker = site.worker()
    Copy(other).put_in_place_of(name_of(site))
    assert worker.wait(60) == REFUSED  # seconds
    assert "another ledger is served here" in worker.output()
    assert site.sandbox.requests(key=key) == []
    assert quarantine(site) is None


def test_a_worker_that_is_killed_leaves_a_witness_that_is_a_second_old_at_most(site: Site) -> None:
    worker = site.worker()
    keys = site.schedule(*(f"op-{n}" for n in range(5)), deadline=FAR)
    for key in keys:
        site.wait_state(key, "delivered")
    wait_for(lambda: in_file(site)["seq"] == newest(site), "the file to follow")
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10)
    assert in_file(site)["seq"] == newest(site)
