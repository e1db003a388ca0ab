"""The embedded local stack: Postgres, Temporal server and web UI, sandbox, worker."""
