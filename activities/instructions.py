"""The ledger's steps in the workflow's words."""

from __future__ import annotations

from ledger.answers import Step
from workflows.contract import Act, Instruction


def instruction(step: Step) -> Instruction:
    """Milliseconds become seconds; the reason says why a write was refused, if it was."""
    delay = None if step.delay_ms is None else step.delay_ms / 1000
    return Instruction(Act(step.act), step.attempt, delay, step.state, step.refused or step.reason)
