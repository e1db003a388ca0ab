"""The ledger: roles, tables, guards, functions, views, grants."""

from ledger.migrations.run_sql import run_files

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FILES = (
    "roles", "tables", "guards", "core", "schedule", "dispatch", "claim", "record", "look_up", "decide", "release",
    "replay", "witness", "views", "grants",
)  # fmt: skip


def upgrade() -> None:
    """Create everything in dependency order, in one transaction."""
    run_files("0001", FILES)
