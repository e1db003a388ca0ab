"""Every adapter does what its descriptor says, against a provider that keeps its own record."""

from __future__ import annotations

import pytest

from provider.registry import ADAPTERS
from tests.conformance.profiles import PROFILES, SCENARIOS, without_profile
from tests.conformance.reports import report_of


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("profile", PROFILES)
async def test_the_adapter_does_what_it_says(profile: str, scenario: str) -> None:
    report = await report_of(profile)
    if scenario in report.failed:
        pytest.fail(report.failed[scenario])
    if scenario in report.not_possible:
        pytest.skip(report.not_possible[scenario])
    assert scenario in report.passed


@pytest.mark.parametrize("profile", PROFILES)
async def test_every_declared_capability_was_seen_at_work(profile: str) -> None:
    report = await report_of(profile)
    assert not report.not_shown, "declared and not shown: an adapter may say only what the suite sees"
    assert report.declared, "this profile declares nothing, so it shows nothing"


def test_every_registered_adapter_has_a_bench() -> None:
    assert not without_profile(ADAPTERS), "register a bench for it in tests/conformance/profiles.py"
    assert without_profile([*ADAPTERS, "fax"]) == {"fax"}
