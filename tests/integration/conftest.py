"""What tests of the ledger share, and a site with a worker's parts in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.harness import Site
from tests.integration.ledger_books import books
from tests.workbench import Bench, bench_of

__all__ = ["bench", "books"]


@pytest.fixture
async def bench(site: Site) -> AsyncIterator[Bench]:
    """Nothing is started: sweep by hand, or enter ``bench.working()``."""
    async with bench_of(site) as made:
        yield made
