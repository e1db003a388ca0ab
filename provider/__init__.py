"""The outside world: port, transport, adapters, sandbox. Knows no SQL and no Temporal."""
