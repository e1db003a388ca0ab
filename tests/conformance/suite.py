"""Runs every scenario against one profile, and counts what was declared and not shown."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from provider.port import Adapter, Descriptor
from tests.conformance.bench import NotPossibleError, Profile
from tests.conformance.stage import Stage

Scenario = Callable[[Stage], Awaitable[None]]


@dataclass(slots=True)
class Report:
    """What one run showed."""

    failed: dict[str, str] = field(default_factory=dict)
    """Scenario to what went wrong."""
    not_possible: dict[str, str] = field(default_factory=dict)
    """Scenario to what this provider cannot do."""
    passed: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)

    @property
    def not_shown(self) -> set[str]:
        """Declared, and no passed scenario has seen it at work: each is a failure."""
        return self.declared - self.shown

    @property
    def complaints(self) -> list[str]:
        """Everything that keeps this adapter from being used."""
        return [f"{scenario}: {why}" for scenario, why in self.failed.items()] + [
            f"declared and not shown: {capability}" for capability in sorted(self.not_shown)
        ]


def declared_by(descriptor: Descriptor) -> set[str]:
    """Every field that differs from its cautious default; of codes, each. A new field is declared like the others."""
    cautious = Descriptor()
    names: set[str] = set()
    for one in fields(Descriptor):
        value = getattr(descriptor, one.name)
        if value == getattr(cautious, one.name):
            continue
        if isinstance(value, frozenset):
            names |= {f"{one.name}:{item}" for item in value}
        else:
            names.add(one.name)
    return names


def as_it_is(adapter: Adapter) -> Adapter:
    """No wrap."""
    return adapter


async def run(
    profile: Profile,
    scenarios: Mapping[str, Scenario],
    *,
    wrap: Callable[[Adapter], Adapter] = as_it_is,
    settings: Mapping[str, Any] | None = None,
) -> Report:
    """All scenarios, one after the other, each with a key of its own."""
    report = Report()
    async with profile.open(wrap, settings or {}) as bench:
        report.declared = declared_by(bench.adapter.descriptor)
        for name, scenario in scenarios.items():
            stage = Stage(bench, name)
            try:
                await scenario(stage)
            except NotPossibleError as exc:
                report.not_possible[name] = str(exc)
            except Exception:  # noqa: BLE001 - whatever it is, this scenario has not passed
                report.failed[name] = traceback.format_exc(limit=-3)
                continue
            else:
                report.passed.add(name)
            report.shown |= stage.shown
    return report
