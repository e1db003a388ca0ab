"""Every sort of provider that the suite runs against. A new adapter is registered here with a bench of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.conformance import calls, http_bench, look_ups, sandbox_bench, smtp_bench
from tests.conformance.bench import Profile
from tests.conformance.suite import Scenario

PROFILES: Mapping[str, Profile] = {
    "http": http_bench.PROFILE,
    "sandbox": sandbox_bench.PROFILE,
    "smtp": smtp_bench.PROFILE,
}

SCENARIOS: Mapping[str, Scenario] = {**calls.SCENARIOS, **look_ups.SCENARIOS}


def without_profile(adapters: Iterable[str]) -> set[str]:
    """Adapters that nothing here tests."""
    return set(adapters) - {profile.adapter for profile in PROFILES.values()}
