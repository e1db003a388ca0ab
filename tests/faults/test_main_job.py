"""The main job on real parts: application, ledger, Temporal, worker and provider, each a process of its own."""

from datetime import timedelta

from tests.harness import Site, wait_for


def test_committed_operations_are_delivered_once_each(site: Site) -> None:
    keys = site.schedule(*(f"op-{n}" for n in range(20)), payload={"n": 1, "name": "Zoë Ångström 東京"})
    site.worker()
    for key in keys:
        row = site.wait_state(key, "delivered")
        assert row["settled_by"] == "reply"
    effects = site.sandbox.effects(prefix=site.prefix)
    assert {key: len(found) for key, found in effects.items()} == dict.fromkeys(keys, 1)
    assert site.history(keys[0]) == ["scheduled", "calling", "delivered"]


def test_a_lost_reply_is_unknown_and_not_sent_again(site: Site) -> None:
    (key,) = site.schedule("lost")
    site.sandbox.tell("commit_then_close", key=key)
    site.worker()
    row = site.wait_state(key, "unknown")
    assert row["open_attempts"] == 1
    site.move_clock(timedelta(hours=3))  # past every alarm
    others = site.schedule("after", due=timedelta(hours=3), deadline=timedelta(hours=5))
    site.wait_state(others[0], "delivered")
    assert site.state(key) == "unknown"
    assert len(site.sandbox.requests(key=key)) == 1
    assert (
        wait_for(lambda: site.sql("SELECT * FROM duly.alerts WHERE name = %s", key), "the alert")[0]["alert"]
        == "unknown"
    )
