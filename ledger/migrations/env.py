"""Alembic's entry: one connection, given by ledger.migrate; the version table lives in schema duly."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, version_table="alembic_version", version_table_schema="duly", transaction_per_migration=True
)
with context.begin_transaction():
    context.run_migrations()
