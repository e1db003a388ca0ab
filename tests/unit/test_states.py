"""The table of states by itself. That the database holds the same one is shown in tests/integration."""

from __future__ import annotations

from itertools import product

import pytest

from ledger.states import DEAD, ENDINGS, ENDINGS_DESPITE_DOUBT, MOVES, UNCERTAIN, State, may_follow

OPEN = frozenset(State) - ENDINGS


def reachable(start: State) -> frozenset[State]:
    """Every state that can come after ``start``, in any number of moves."""
    found: set[State] = set()
    todo = [start]
    while todo:
        new = MOVES[todo.pop()] - found
        found |= new
        todo.extend(new)
    return frozenset(found)


def test_every_state_has_its_moves() -> None:
    assert set(MOVES) == set(State)


@pytest.mark.parametrize("state", sorted(ENDINGS))
def test_nothing_follows_an_ending(state: State) -> None:
    assert not MOVES[state]


@pytest.mark.parametrize("state", sorted(OPEN))
def test_no_open_state_is_a_dead_end(state: State) -> None:
    assert MOVES[state]
    assert reachable(state) & ENDINGS


@pytest.mark.parametrize("state", sorted(State))
def test_every_state_can_come_about(state: State) -> None:
    assert state is State.SCHEDULED or state in reachable(State.SCHEDULED)


@pytest.mark.parametrize("state", sorted(State))
def test_a_move_to_the_same_state_is_no_move(state: State) -> None:
    assert not may_follow(state, state)


@pytest.mark.parametrize("state", sorted(UNCERTAIN))
def test_whatever_is_in_doubt_can_become_unknown_and_be_proved(state: State) -> None:
    assert state is State.UNKNOWN or may_follow(state, State.UNKNOWN)
    assert may_follow(state, State.DELIVERED)


def test_only_a_claim_sends() -> None:
    assert {
        before for before, after in product(State, State) if may_follow(before, after) and after is State.CALLING
    } == {
        State.SCHEDULED,
        State.UNKNOWN,  # a permitted repeat
    }


def test_what_waits_for_the_provider_is_never_sent_again_by_itself() -> None:
    assert not may_follow(State.ACCEPTED, State.SCHEDULED)
    assert not may_follow(State.ACCEPTED, State.CALLING)


def test_a_late_reply_withdraws_what_has_not_been_claimed() -> None:
    for state in (State.SCHEDULED, State.BLOCKED):
        assert may_follow(state, State.DELIVERED)
        assert may_follow(state, State.ACCEPTED)


def test_a_call_in_flight_is_neither_ineligible_nor_abandoned() -> None:
    assert not may_follow(State.CALLING, State.INELIGIBLE)
    assert not may_follow(State.CALLING, State.ABANDONED)


def test_endings_despite_doubt_are_endings_and_the_dead_list_claims_no_effect() -> None:
    assert ENDINGS_DESPITE_DOUBT < ENDINGS
    assert not UNCERTAIN & ENDINGS
    assert ENDINGS_DESPITE_DOUBT.isdisjoint(DEAD)
    assert {State.BLOCKED} == DEAD - ENDINGS
