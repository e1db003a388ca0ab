"""The truth: states, tables, transitions (all writes), queries (all reads), migrations."""
