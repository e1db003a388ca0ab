"""The database goes away, or its answers do, at the moments that matter. The call is never repeated for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from stack.local import Stack
from tests.faults.checks import check, slowly
from tests.faults.tcp_proxy import Cut, TcpProxy
from tests.harness import Site, wait_for

FAR = timedelta(days=2)  # a deadline beyond every moved clock here
CLAIM, RECORD = "duly.claim(", "duly.record("
KEPT = "reply kept in the workflow"  # what the worker logs when its patience with the ledger is over


@pytest.fixture
def postgres(stack_env: Stack) -> Iterator[Stack]:
    """The server itself, to be stopped by the test; it is back afterwards, for the other tests."""
    yield stack_env
    if stack_env.postgres is None:
        stack_env.start_postgres()


def settled(site: Site, key: str, *states: str) -> None:
    """It goes through these states and no others, and much later there is still one request and one effect."""
    site.wait_state(key, states[-1])
    site.much_later()
    assert site.history(key) == ["scheduled", *states]
    assert len(site.attempts(key)) == 1
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


def test_a_cut_commit_leads_to_one_call_and_its_record(site: Site, line: TcpProxy) -> None:
    site.worker()
    keys = []
    for name, statement, where in [
        ("claim-never-applied", CLAIM, Cut.BEFORE),
        ("claim-applied", CLAIM, Cut.REPLY),
        ("record-never-applied", RECORD, Cut.BEFORE),
        ("record-applied", RECORD, Cut.REPLY),
    ]:
        order = line.cut(where, statement)
        keys += site.schedule(name, deadline=FAR)
        site.wait_state(keys[-1], "delivered")
        assert order.carried_out.is_set(), name
    for key in keys:
        settled(site, key, "calling", "delivered")
        # The same activity went on: nothing had to time out or to be asked.
        assert site.events(key).count("ACTIVITY_TASK_SCHEDULED") == 1, key


def test_a_claim_whose_fate_cannot_be_learnt_sends_nothing(site: Site, line: TcpProxy) -> None:
    order = line.cut(Cut.REPLY, CLAIM, stay_away=True)
    (key,) = site.schedule("op", deadline=FAR)
    site.worker()
    wait_for(order.carried_out.is_set, "the cut")
    assert site.state(key) == "calling"  # it was applied, and the worker cannot know
    site.wait_event(key, "ACTIVITY_TASK_FAILED")
    line.come_back()
    site.wait_state(key, "unknown")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "unknown"]
    assert site.sandbox.requests(key=key) == []
    check(site)


def test_postgres_stopped_after_the_provider_accepted_gets_the_record_when_it_is_back(
    site: Site, line: TcpProxy, postgres: Stack
) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    slowly(site, key)
    worker = site.worker()
    site.wait_request(key)
    postgres.stop_postgres()
    wait_for(lambda: site.sandbox.count(key), "the effect")
    before = line.refused
    wait_for(lambda: line.refused >= before + 3, "the activity to have tried to record")
    postgres.start_postgres()
    settled(site, key, "calling", "delivered")
    assert KEPT not in worker.output()
    assert site.events(key).count("ACTIVITY_TASK_SCHEDULED") == 1


def test_postgres_killed_during_a_call_leaves_dead_connections_and_loses_no_reply(site: Site, postgres: Stack) -> None:
    # As many as a worker's pool has connections (ledger/database.py). A lock makes all of them wait at once.
    keys = site.schedule(*(f"op-{n}" for n in range(10)), deadline=FAR)
    site.sandbox.tell("slow:1", match=f"{site.prefix}*")
    (key,) = site.schedule("last", due=timedelta(minutes=5), deadline=FAR)
    slowly(site, key)
    worker = site.worker()
    wait_for(lambda: len(site.sandbox.requests(prefix=site.prefix)) == len(keys), "all requests")
    with psycopg.connect(site.database) as somebody:
        somebody.execute("SELECT FROM duly.operation FOR UPDATE")
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%duly.record%%'"
        wait_for(lambda: len(site.sql(waiting)) >= 9, "the records to wait")  # the dispatcher may have the tenth
    for other in keys:
        site.wait_state(other, "delivered")
    site.move_clock(timedelta(minutes=5))
    site.wait_request(key)
    postgres.stop_postgres(kill=True)
    postgres.start_postgres()
    settled(site, key, "calling", "delivered")
    assert site.events(key).count("ACTIVITY_TASK_SCHEDULED") == 1
    assert KEPT not in worker.output()


@pytest.mark.parametrize("silent", [False, True], ids=["away", "silent"])
def test_a_reply_beyond_the_patience_is_kept_by_temporal_and_settles_the_unknown_that_came_first(
    site: Site, line: TcpProxy, silent: bool
) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    slowly(site, key)
    worker = site.worker()
    site.wait_request(key)
    if silent:
        line.cut(Cut.SILENCE, RECORD)  # no error comes, ever
    else:
        line.go_away()
    wait_for(lambda: KEPT in worker.output(), "the worker to lose patience")
    site.wait_event(key, "ACTIVITY_TASK_COMPLETED")
    if not silent:
        os.kill(worker.pid, signal.SIGKILL)  # now the reply is in Temporal's history and nowhere else
        worker.wait(10)  # seconds
    # What a nudge makes a workflow do; here it comes before the record, for certain.
    wait_for(
        lambda: site.sql("SELECT 1 FROM duly.operation WHERE key = %s AND lease_until < duly.now()", key), "the lease"
    )
    site.sql("SELECT duly.instruct(%s, 1, 'a nudge')", key)
    assert site.state(key) == "unknown"
    line.come_back()
    if not silent:
        site.worker()
    settled(site, key, "calling", "unknown", "delivered")
    (late,) = site.sql("SELECT source, finding FROM duly.evidence WHERE key = %s", key)
    assert late == {"source": "late reply", "finding": "delivered"}
    row = site.operation(key)
    assert row["settled_by"] == "reply"
    assert row["provider_reference"] == site.sandbox.effects(key=key)[key][0]["id"]


def test_a_worker_whose_connections_died_without_a_sign_goes_on_with_new_ones(site: Site, line: TcpProxy) -> None:
    first, second = site.schedule("first", "second", deadline=FAR)
    site.worker()
    for key in (first, second):
        site.wait_state(key, "delivered")
    line.lose_the_open_lines()
    (after,) = site.schedule("after", deadline=FAR)
    site.wait_state(after, "delivered")
    assert line.held
    check(site)


def test_a_claim_in_a_silent_database_is_given_up_and_made_again_when_it_speaks(site: Site, line: TcpProxy) -> None:
    order = line.cut(Cut.SILENCE, CLAIM)
    (key,) = site.schedule("op", deadline=FAR)
    site.worker()
    wait_for(order.carried_out.is_set, "the silence")
    site.wait_event(key, "ACTIVITY_TASK_FAILED")
    assert site.sandbox.requests(key=key) == []
    line.come_back()
    # The claims that nobody waits for any more are rolled back, not applied: else it would be unknown.
    settled(site, key, "calling", "delivered")


def test_a_deadlock_or_serialization_failure_repeats_the_transaction_and_never_the_call(site: Site) -> None:
    # Claim and record fail twice each, the third try passes: a sequence is not taken back with what fails.
    site.sql(
        "CREATE SEQUENCE public.tries; GRANT ALL ON SEQUENCE public.tries TO public;"
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  CASE nextval('public.tries') %% 3"
        "    WHEN 1 THEN RAISE EXCEPTION 'injected' USING ERRCODE = 'deadlock_detected';"
        "    WHEN 2 THEN RAISE EXCEPTION 'injected' USING ERRCODE = 'serialization_failure';"
        "    ELSE RETURN NEW; END CASE; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON duly.history FOR EACH ROW"
        "  WHEN (NEW.after IN ('calling', 'delivered')) EXECUTE FUNCTION public.refuse()"
    )
    (key,) = site.schedule("op", deadline=FAR)
    site.worker()
    site.wait_state(key, "delivered")
    assert site.sql("SELECT last_value FROM public.tries") == [{"last_value": 6}]
    settled(site, key, "calling", "delivered")
    assert site.events(key).count("ACTIVITY_TASK_SCHEDULED") == 1


def test_a_row_locked_by_somebody_delays_the_record_and_nothing_else(site: Site) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    slowly(site, key)
    site.worker()
    site.wait_request(key)
    waiting = "SELECT query_start FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%duly.record%%'"
    with psycopg.connect(site.database) as somebody:
        somebody.execute("SELECT FROM duly.operation WHERE key = %s FOR UPDATE", [key])
        first = wait_for(lambda: site.sql(waiting), "the record to wait for the lock")
        # Two seconds later its lock time-out ends that try, and the next one waits.
        wait_for(lambda: site.sql(waiting) not in ([], first), "the record to be tried again")
    settled(site, key, "calling", "delivered")
    assert site.events(key).count("ACTIVITY_TASK_SCHEDULED") == 1


def test_calls_in_flight_hold_no_connection(site: Site) -> None:
    # Five more than a worker's pool has (ledger/database.py): with one held per call they could not all be out.
    keys = site.schedule(*(f"op-{n}" for n in range(15)), deadline=FAR)
    site.configure(call_limit="8s")
    site.sandbox.tell("slow:2", match=f"{site.prefix}*")  # seconds
    site.worker()
    wait_for(lambda: len(site.sandbox.requests(prefix=site.prefix)) == len(keys), "all requests")
    assert site.sandbox.effects(prefix=site.prefix) == {}
    held = (
        "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'duly' AND xact_start < clock_timestamp() - interval '1 second'"
    )
    looks = 0
    while not site.sandbox.effects(prefix=site.prefix):
        assert site.sql(held) == []  # the dispatcher's own transactions last milliseconds
        looks += 1
    assert looks > 5  # over more than a second
    for key in keys:
        site.wait_state(key, "delivered")
    check(site)
