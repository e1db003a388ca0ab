"""The joints between workflow, ledger and provider. Thin."""
