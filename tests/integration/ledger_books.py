"""The fixture ``books``: a ledger under test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ledger.database import connect
from tests.integration.ledger_audit import audit
from tests.integration.ledger_steps import Books

CLOCK = """
CREATE TABLE public.test_clock (shift interval NOT NULL);
INSERT INTO public.test_clock VALUES ('0');
GRANT SELECT ON public.test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION duly.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL RESTRICTED
  RETURN clock_timestamp() + (SELECT t.shift FROM public.test_clock t);
"""


@pytest.fixture
async def books(database: str) -> AsyncIterator[Books]:
    """A ledger whose clock can be moved. After the test its history is folded and its counters are counted."""
    engine = connect(database)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(CLOCK, execution_options={"no_parameters": True})
        ledger = Books(engine, database)
        await ledger.configure()
        yield ledger
        await audit(ledger)
    finally:
        await engine.dispose()
