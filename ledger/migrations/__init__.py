"""Alembic revisions and their SQL."""
