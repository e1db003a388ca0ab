"""Scenarios of look-ups: what a finding may say of what the provider really did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from provider.port import FindingName, OutcomeName, Query
from tests.conformance.bench import Do, NotPossibleError, Say
from tests.conformance.stage import LIMIT, Stage
from tests.conformance.suite import Scenario

SHORT = 0.5
"""Seconds: a time limit for what never comes."""

WORK = 1.5
"""Seconds that a provider works visibly: longer than a busy machine keeps a test from looking."""


def _asked(stage: Stage) -> str:
    by = stage.declared.look_up_by
    if by is None:
        raise NotPossibleError("no look-up is declared")
    return by


async def _query(stage: Stage, *, reference: str | None = None) -> Query:
    """A query with what the declared look-up asks by; what it does not need is not there."""
    query = stage.query()
    if _asked(stage) == "reference":
        return replace(query, reference=reference)
    return query


async def an_effect_whose_reply_was_lost_is_found(stage: Stage) -> None:
    if _asked(stage) == "reference":
        outcome = await stage.perform()
        query = await _query(stage, reference=outcome.reference)
    else:
        await stage.commit_without_reply()
        query = await _query(stage)
    finding = await stage.look_up_in_time(query)
    assert finding.name is FindingName.APPLIED
    assert finding.reference, "no reference"
    stage.show("look_up_by")


async def without_anything_to_ask_by_nothing_is_found_or_concluded(stage: Stage) -> None:
    await stage.perform()
    query = replace(stage.query(), idempotency_keys=(), reference=None, payload={}, key=f"{stage.key}-not")
    finding = await stage.look_up_in_time(query)
    assert finding.name is not FindingName.APPLIED


async def somebody_elses_effect_is_not_ours(stage: Stage) -> None:
    _asked(stage)
    await stage.perform()
    other = replace(stage.query(), key=f"{stage.key}-other", idempotency_keys=("0123456789abcdef012345678",))
    assert (await stage.look_up_in_time(replace(other, reference="none-of-ours"))).name is not FindingName.APPLIED


async def nothing_is_found_where_nothing_is_and_only_the_providers_own_words_say_so(stage: Stage) -> None:
    _asked(stage)
    query = await _query(stage, reference="eff-not-there")
    assert (await stage.look_up_in_time(query)).name is FindingName.ABSENT
    for say in (Say.ERROR, Say.DENIED, Say.CUT, Say.FULL, Say.WRONG, Say.STALL):
        await stage.bench.tell_look_up(stage.key, say)
        asked = replace(query, time_limit=SHORT if say is Say.STALL else LIMIT)
        name = (await stage.look_up(asked)).name
        if say is Say.WRONG and stage.declared.look_up_by == "search":
            continue  # nobody can tell whose it is
        allowed = {FindingName.CANNOT_TELL} | ({FindingName.ABSENT} if say is Say.WRONG else set())
        assert name in allowed, f"{say}: {name}"
    await stage.bench.tell_look_up(stage.key, Say.TRUTH)
    assert (await stage.look_up(query)).name is FindingName.ABSENT
    await stage.perform()
    assert (
        await stage.look_up_in_time(query)
    ).name is not FindingName.ABSENT or stage.declared.look_up_by == "reference"
    if stage.declared.look_up_by in ("key", "reference") and stage.declared.look_up_lag is not None:
        stage.show("look_up_conclusive")


async def after_the_declared_lag_an_effect_is_always_visible(stage: Stage) -> None:
    _asked(stage)
    lag = stage.declared.look_up_lag
    if lag is None:
        raise NotPossibleError("no lag is declared")
    outcome = await stage.perform()
    query = await _query(stage, reference=outcome.reference)
    assert (await stage.look_up(query)).name in (FindingName.APPLIED, FindingName.ABSENT)
    await stage.bench.pass_time(lag)
    assert (await stage.look_up(query)).name is FindingName.APPLIED, "still invisible after the declared lag"
    stage.show("look_up_lag")


async def an_answer_that_is_none_takes_no_effect_back(stage: Stage) -> None:
    _asked(stage)
    outcome = await stage.perform()
    query = await _query(stage, reference=outcome.reference)
    for say in (Say.ERROR, Say.DENIED, Say.CUT, Say.FULL, Say.STALL):
        await stage.bench.tell_look_up(stage.key, say)
        asked = replace(query, time_limit=SHORT if say is Say.STALL else LIMIT)
        assert (await stage.look_up(asked)).name is FindingName.CANNOT_TELL, say


async def two_effects_are_never_one(stage: Stage) -> None:
    _asked(stage)
    outcome = await stage.perform()
    await stage.bench.tell_look_up(stage.key, Say.SEVERAL)
    finding = await stage.look_up_in_time(await _query(stage, reference=outcome.reference))
    assert finding.name in (FindingName.SEVERAL, FindingName.CANNOT_TELL)


async def two_epochs_with_an_effect_each_are_several(stage: Stage) -> None:
    if _asked(stage) != "key":
        raise NotPossibleError("it is not asked by key")
    first, second = stage.call(epoch=1), stage.call(epoch=2)
    for call in (first, second):
        await stage.perform(call)
    query = replace(stage.query(), idempotency_keys=(second.idempotency_key, first.idempotency_key))
    assert (await stage.look_up_in_time(query)).name in (FindingName.SEVERAL, FindingName.CANNOT_TELL)


async def what_is_taken_for_later_is_working_and_then_applied_or_refused(stage: Stage) -> None:
    _asked(stage)
    for do, end in ((Do.ACCEPT, FindingName.APPLIED), (Do.ACCEPT_THEN_FAIL, FindingName.REFUSED)):
        later = (stage.declared.look_up_lag or 0.0) + WORK
        await stage.bench.tell(stage.key, do, later)
        call = stage.call(epoch=1 if do is Do.ACCEPT else 2)
        outcome = await stage.perform(call)
        assert outcome.name is OutcomeName.ACCEPTED
        query = replace(stage.query(call), reference=outcome.reference)
        await stage.bench.pass_time(stage.declared.look_up_lag or 0.0)
        seen = [(await stage.look_up(query, pending=True)).name]
        while seen[-1] in (FindingName.WORKING, FindingName.ABSENT):
            await stage.bench.pass_time(WORK / 10)
            seen.append((await stage.look_up(query, pending=True)).name)
        assert FindingName.WORKING in seen, "never shown as working"
        assert seen[-1] is end


async def a_dead_address_cannot_tell(stage: Stage) -> None:
    query = replace(stage.query(), reference="r")
    finding = await stage.look_up(query, adapter=stage.bench.other(reachable=False))
    assert finding.name is FindingName.CANNOT_TELL


async def who_cannot_be_asked_is_not_asked(stage: Stage) -> None:
    if stage.declared.look_up_by is not None:
        raise NotPossibleError("a look-up is declared")
    await stage.perform()
    assert (await stage.look_up()).name is FindingName.CANNOT_TELL


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        an_effect_whose_reply_was_lost_is_found,
        without_anything_to_ask_by_nothing_is_found_or_concluded,
        somebody_elses_effect_is_not_ours,
        nothing_is_found_where_nothing_is_and_only_the_providers_own_words_say_so,
        after_the_declared_lag_an_effect_is_always_visible,
        an_answer_that_is_none_takes_no_effect_back,
        two_effects_are_never_one,
        two_epochs_with_an_effect_each_are_several,
        what_is_taken_for_later_is_working_and_then_applied_or_refused,
        a_dead_address_cannot_tell,
        who_cannot_be_asked_is_not_asked,
    )
}
