"""Deterministic workflow code and the wire contract. Imports nothing else of ours."""
