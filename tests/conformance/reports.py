"""The suite runs once for each profile; whoever wants to know looks at its report."""

from __future__ import annotations

from tests.conformance.profiles import PROFILES, SCENARIOS
from tests.conformance.suite import Report, run

_reports: dict[str, Report] = {}


async def report_of(profile: str) -> Report:
    """Of all scenarios, with the adapter as it is."""
    if profile not in _reports:
        _reports[profile] = await run(PROFILES[profile], SCENARIOS)
    return _reports[profile]
