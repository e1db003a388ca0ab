"""explain, against random histories: every claim of its text holds by the facts, and by what really happened."""

from __future__ import annotations

import random
import re
from collections import Counter

from ledger import transitions
from reconcile.effects import account
from reconcile.explain import Sentence, explain
from tests.integration.histories import KINDS, World
from tests.integration.ledger_steps import Books, Row

HISTORIES = 120
"""Enough that each ending is among them many times, and that treating an open attempt as none was caught (by hand)."""

STEPS = 25
"""At most, for one history."""

ENDED = ("delivered", "rejected", "expired", "exhausted", "cancelled", "superseded", "abandoned")
PHRASES = ("no second effect can", "no effect can", "cannot be excluded", "effects happened", "a person's word",
           "are one to")  # fmt: skip

ATTEMPTS = re.compile(r"\b[Aa]ttempts? ((?:\d+(?:, | and )?)+)")
DECISIONS = re.compile(r"\b[Dd]ecision (\d+)")
EVIDENCE = re.compile(r"\b[Ee]vidence ((?:\d+(?:, | and )?)+)")


def numbers(pattern: re.Pattern[str], text: str) -> set[int]:
    return {int(number) for found in pattern.findall(text) for number in re.findall(r"\d+", found)}


async def test_every_claim_about_every_history_holds(books: Books) -> None:
    await transitions.configure(books.engine, KINDS, [{"name": "main", "provider": "sandbox"}])
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        world = World(books, rng, f"k{seed}", rng.choice(KINDS))
        await world.begin()
        for _ in range(STEPS):
            going_on = await world.step()
            if not going_on:
                break
        row = await books.row(world.key)
        sentences = explain(row)
        told = "\n".join(sentence.text for sentence in sentences)
        try:
            check_names(row, sentences)
            check_truth(row, world, sentences)
            check_not_too_cautious(row, sentences)
        except AssertionError as error:
            error.add_note(f"seed {seed}, {world.kind['name']}: {' / '.join(world.steps)}\nreal: {world.had}\n{told}")
            raise
        seen[row["state"]] += 1
        seen.update(phrase for phrase in PHRASES if phrase in told.lower())
    for name in (*ENDED, "unknown", *PHRASES):
        assert seen[name] > 0, f"no history shows {name}: {seen}"


def check_names(row: Row, sentences: list[Sentence]) -> None:
    """All that is on record is told once, in order, and nothing is named that is not there."""
    story = [sentence for sentence in sentences if sentence.about == "story"]
    events = len(row["history"]) + sum(a["recorded_at"] is not None for a in row["attempt"])
    assert len(story) == events + len(row["evidence"]) + len(row["decision"]) + len(row["approval"])
    times = [sentence.at for sentence in story]
    assert times == sorted(times, key=lambda at: at or row["created_at"])
    text = "\n".join(sentence.text for sentence in sentences if sentence.about != "next")
    made = {a["number"] for a in row["attempt"]}
    assert numbers(ATTEMPTS, text) == made
    assert numbers(DECISIONS, text) == {d["id"] for d in row["decision"]}
    assert numbers(EVIDENCE, text) == {e["id"] for e in row["evidence"]}
    for decision in row["decision"]:
        assert f"Decision {decision['id']} of {decision['decided_by']}" in text


def check_truth(row: Row, world: World, sentences: list[Sentence]) -> None:
    """What is said of effects is true; what rests on a person's word is true if that person was right."""
    effects = [sentence.text for sentence in sentences if sentence.about == "effects"]
    claimed: Counter[int] = Counter()
    for text in effects:
        for number in numbers(ATTEMPTS, text.split(":")[0]) if re.match(r"Attempts? \d", text) else ():
            claimed[number] += 1
            word = numbers(DECISIONS, text)
            if "had no effect" in text and all(world.told[decision] for decision in word):
                assert world.had[number] is None, text
            if "had an effect" in text and "may have" not in text and not numbers(DECISIONS, text):
                assert world.had[number] is not None or "look-up" in text, text
    assert claimed == Counter(dict.fromkeys(world.had, 1)), "each attempt is accounted for once"

    verdict = "\n".join(effects)
    counted = account(row)
    right = all(world.told[decision] for decision in counted.on_word)
    bounded = re.search(r"o (second )?effect can have happened", verdict)
    assert bool(bounded) == (counted.at_most is not None and counted.at_most <= 1)
    if bounded and right:
        assert world.real <= (1 if bounded[1] else 0), verdict
    if bounded and counted.on_word:
        assert "rests on a person's word" in verdict
        named = numbers(DECISIONS, verdict[verdict.index("rests on a person's word") :])
        assert named == set(counted.on_word)
    if not bounded:
        assert "cannot be excluded" in verdict or "effects happened" in verdict
    if counted.at_most is not None and right:
        assert world.real <= counted.at_most, verdict
    if happened := re.search(r"(\d+) effects happened", verdict):
        assert all(world.told.values()) is False or world.real >= int(happened[1]), verdict


def check_not_too_cautious(row: Row, sentences: list[Sentence]) -> None:
    """Where each attempt's own reply proves what it did and says it once, the account is exact."""
    proved = all(a["outcome"] not in (None, "unknown", "in_flight", "duplicate", "accepted") for a in row["attempt"])
    delivered = sum(a["outcome"] == "delivered" for a in row["attempt"])
    corrected = any(decision["choice"] == "correct" for decision in row["decision"])
    if proved and delivered <= 1 and not row["contradicted"] and not corrected:
        counted = account(row)
        assert (counted.proved, counted.at_most, counted.on_word) == (delivered, delivered, ())
