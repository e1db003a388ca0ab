"""What follows an outcome, and how long it waits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.states import ENDINGS, State
from provider.port import Outcome, OutcomeName
from reconcile.policy import TABLE, Backoff, delay_ms

SECONDS = st.floats(min_value=0.001, max_value=86_400.0)
ATTEMPTS = st.integers(min_value=1, max_value=10_000)
HINTS = st.none() | st.floats(min_value=0.0, max_value=31 * 86_400.0)  # a month is the longest hint that is believed


def test_every_outcome_has_a_rule_and_there_is_none_without_an_outcome() -> None:
    assert set(TABLE) == set(OutcomeName)


def test_only_what_proves_that_nothing_was_done_is_sent_again() -> None:
    again = {name for name, rule in TABLE.items() if rule.then == "again"}
    assert again == {OutcomeName.NOT_SENT, OutcomeName.NOT_PROCESSED, OutcomeName.THROTTLED, OutcomeName.DENIED}


def test_an_ending_is_named_exactly_where_the_operation_ends() -> None:
    for rule in TABLE.values():
        assert (rule.then == "end") == (rule.ends_as is not None)
        assert rule.ends_as is None or State(rule.ends_as) in ENDINGS


def test_what_never_reached_the_provider_or_was_held_back_uses_up_no_attempt() -> None:
    free = {name for name, rule in TABLE.items() if not rule.counts}
    assert free == {OutcomeName.NOT_SENT, OutcomeName.THROTTLED, OutcomeName.DENIED}


@given(base=SECONDS, cap=SECONDS, attempt=ATTEMPTS, hint=HINTS, seed=st.integers())
def test_a_wait_is_never_below_the_hint_or_a_second_and_never_above_the_cap_unless_one_of_them_says_so(
    base: float, cap: float, attempt: int, hint: float | None, seed: int
) -> None:
    delay = Backoff(base, cap).delay(attempt, hint, random.Random(seed))
    least = max(1.0, hint or 0.0)
    assert least <= delay <= max(least, cap)


@given(attempt=ATTEMPTS, seed=st.integers())
def test_a_wait_is_never_above_the_doubled_base(attempt: int, seed: int) -> None:
    delay = Backoff(2.0, 1e9).delay(attempt, None, random.Random(seed))
    assert delay <= max(1.0, 2.0 * 2.0 ** min(attempt - 1, 30))


def test_waits_grow_and_are_spread_out() -> None:
    rng = random.Random(1)
    backoff = Backoff(2.0, 300.0)
    means = [sum(backoff.delay(attempt, None, rng) for _ in range(500)) / 500 for attempt in (1, 4, 8)]
    assert means == sorted(means)
    assert means[2] > 5 * means[0]
    assert len({backoff.delay(8, None, rng) for _ in range(100)}) == 100


@pytest.mark.parametrize("name", OutcomeName)
def test_only_what_is_sent_again_by_itself_has_a_wait(name: OutcomeName) -> None:
    wait = delay_ms(Outcome(name, sent=True, retry_after=7.0), 3, Backoff(2.0, 300.0), random.Random(1))
    waits = TABLE[name].then == "again" and name is not OutcomeName.DENIED  # which waits for a release
    assert wait >= 7_000 if waits else wait == 0
