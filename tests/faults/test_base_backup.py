"""A whole server is restored from a real base backup, or a replica is promoted that was behind, under a real worker."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from stack import database as databases
from stack import postgres
from stack.local import DATABASE, Stack
from stack.place import Place, temporary_home
from stack.process import Process
from stack.state import Ports
from stack.temporal import HEADLESS, QUICK_TIMERS
from tests.faults.checks import check
from tests.faults.test_restore import adopt, in_file, newest, quarantine, wait_quarantine
from tests.harness import TEMPLATE, Site, fresh_site, wait_for

FAR = timedelta(days=2)
KILLED = 128 + signal.SIGKILL

# What backups and replicas of a running server need, and the local stack does not.
REPLICATED = {"wal_level": "replica", "max_wal_senders": "5", "hot_standby": "on"}


class Server:
    """The embedded Postgres of one stack, with its data folder to be taken away and put back."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        assert stack._place is not None
        self.place = stack._place

    def backup(self, name: str, *arguments: str) -> Path:
        """What pg_basebackup makes of the running server."""
        target = self.place.data.with_name(name)
        target.mkdir(mode=0o700)
        user = pwd.getpwnam(self.place.user) if self.place.user else None
        if user:
            os.chown(target, user.pw_uid, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        program = str(self.place.programs / "pg_basebackup")
        command = [program, "-h", str(self.place.sockets), "-U", "postgres", "-D", str(target), "--checkpoint=fast"]
        subprocess.run([*command, *arguments], check=True, cwd="/", **identity)  # type: ignore[call-overload]
        (target / ".s.PGSQL.5432.lock").unlink()  # the socket lies beside the data, and its lock is copied
        return target

    def put(self, folder: Path, *, keep_as: str | None = None) -> None:
        """The server dies, and comes back with this data. What it had is kept beside, or lost."""
        if self.stack.postgres:
            self.stack.stop_postgres(kill=True)
        if keep_as is None:
            shutil.rmtree(self.place.data)
        else:
            self.place.data.rename(self.place.data.with_name(keep_as))
        folder.rename(self.place.data)
        self.stack.start_postgres()

    def standby(self, folder: Path) -> Process:
        """A replica of the server on that data, which answers."""
        place = Place(folder, folder, self.place.programs, self.place.user)
        return postgres.start(place, self.stack.home / "logs" / "standby.log")

    def ask(self, statement: str, folder: Path | None = None) -> str:
        """One value, from the server or from the one on that folder."""
        place = Place(folder or self.place.data, folder or self.place.sockets, self.place.programs, self.place.user)
        with psycopg.connect(place.url("postgres"), autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
            assert row is not None
            return str(row[0])


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Servers that nobody else uses, so that they can be stopped and replaced."""
    before = dict(postgres.SETTINGS)
    postgres.SETTINGS.update(REPLICATED)
    try:
        with temporary_home() as home:
            arguments = (*HEADLESS, *QUICK_TIMERS)
            stack = Stack(
                home, ports=Ports.free(), with_worker=False, external=False, quick=True, temporal_arguments=arguments
            )
            with stack:
                databases.create(stack.database_url("postgres"), TEMPLATE, template=DATABASE)
                yield stack
    finally:
        postgres.SETTINGS.clear()
        postgres.SETTINGS.update(before)


@pytest.fixture
def own_site(own_stack: Stack, tmp_path: Path) -> Iterator[Site]:
    with fresh_site(own_stack, tmp_path) as made:
        yield made


def wipe_temporal(stack: Stack) -> None:
    """Its data is gone; the server is there again, and knows of nothing but an empty default namespace."""
    stack.stop_temporal(kill=True)
    for path in stack.home.glob("temporal.db*"):
        path.unlink()
    stack.start_temporal()


@pytest.mark.parametrize("wiped", [False, True], ids=["Temporal intact", "Temporal's data gone"])
def test_a_base_backup_restored_behind_a_running_worker_doubles_nothing(own_site: Site, wiped: bool) -> None:
    """F85, and F86: without Temporal only the file tells."""
    site, server = own_site, Server(own_site.stack)
    site.namespace = site.environment["TEMPORAL_NAMESPACE"] = "default" if wiped else site.namespace
    worker = site.worker()
    os.kill(worker.pid, signal.SIGSTOP)
    before = site.schedule("a", "b", deadline=FAR)
    backup = server.backup("backup")
    os.kill(worker.pid, signal.SIGCONT)
    (after,) = site.schedule("after", deadline=FAR)  # the backup knows nothing of this one at all
    for key in (*before, after):
        site.wait_state(key, "delivered")
    wait_for(lambda: in_file(site)["seq"] == newest(site), "the witness to follow")

    if wiped:
        wipe_temporal(site.stack)
    server.put(backup)
    assert "went back in time" in wait_quarantine(site)
    for key in before:
        site.wait_state(key, "unknown")
    # The application, restored as well, asks for what it does not remember to have asked for.
    assert site.schedule("after", deadline=FAR) == [after]
    adopt(site)
    (fresh,) = site.schedule("fresh", deadline=FAR)
    site.wait_state(fresh, "delivered")
    site.much_later()
    assert worker.running
    assert [site.state(key) for key in before] == ["unknown", "unknown"]
    for key in before:
        assert len(site.sandbox.requests(key=key)) == 1
    if wiped:
        # Nobody is left who could know of it; but it carries the key of before, and the provider does.
        site.wait_state(after, "delivered")
        assert len(site.sandbox.requests(key=after)) == 2
    else:
        site.wait_state(after, "unknown")
        assert len(site.sandbox.requests(key=after)) == 1
    for key in (*before, after, fresh):
        assert site.sandbox.count(key) == 1
    assert quarantine(site) is None


def test_a_replica_that_never_got_the_last_claim_sends_nothing_again_and_the_old_primary_is_not_believed(
    own_site: Site,
) -> None:
    """F83: failover to an asynchronous replica, with the worker gone as well; F84: then the old primary comes back."""
    site, server = own_site, Server(own_site.stack)
    copy = server.backup("replica", "--write-recovery-conf")
    replica = server.standby(copy)
    # With Temporal, and no further: this worker dies as soon as the first start is accepted.
    (key,) = site.schedule("op", deadline=FAR)
    assert site.worker(crash="dispatch_started=kill", wait=False).wait(60) == KILLED
    here = server.ask("SELECT pg_current_wal_lsn()")
    wait_for(
        lambda: server.ask(f"SELECT pg_last_wal_replay_lsn() >= '{here}'", copy) == "True", "the replica to follow"
    )
    replica.stop()

    # Claimed, sent, and neither recorded nor replicated.
    (site.folder / "fuse").unlink()
    assert site.worker(crash="after_reply=kill", wait=False).wait(60) == KILLED
    assert (site.state(key), site.sandbox.count(key)) == ("calling", 1)
    site.stack.stop_postgres(kill=True)
    replica = server.standby(copy)
    server.ask("SELECT pg_promote()", copy)
    replica.stop()
    server.put(copy, keep_as="old primary")
    assert server.ask("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)") == "00000002"
    assert site.state(key) == "scheduled"

    worker = site.worker(wait=False)
    site.wait_state(key, "unknown")
    if quarantine(site):  # the witness of the last worker may have been quick enough to hold the claim
        adopt(site)
    (fresh,) = site.schedule("fresh", deadline=FAR)
    site.wait_state(fresh, "delivered")
    site.much_later()
    assert site.state(key) == "unknown"
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)
    wait_for(lambda: in_file(site)["seq"] == newest(site), "the witness to follow")

    server.put(server.place.data.with_name("old primary"), keep_as="new primary")
    assert "went back in time" in wait_quarantine(site)
    (held,) = site.schedule("held", deadline=FAR)
    wait_for(lambda: site.operation(held)["waiting_for"] == "quarantine", "it to be held")
    assert site.sandbox.requests(key=held) == []
    # The right one again: it was never adopted, and nothing has to be.
    server.put(server.place.data.with_name("new primary"), keep_as="old primary")
    (again,) = site.schedule("again", deadline=FAR)
    site.wait_state(again, "delivered")
    assert quarantine(site) is None
    assert worker.running
    check(site)
