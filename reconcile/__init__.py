"""Sweep and policy: what needs a workflow now, and what an outcome leads to."""
