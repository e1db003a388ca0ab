"""The SDK's sandbox, in which the workflow tests run: it refuses what a replay could see differently.

The deployed worker does without it, see ``worker.RUNNER``.
"""

from __future__ import annotations

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

# Modules are passed through: a new import of each for every run is most of its cost and would find nothing more.
SANDBOX = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_all_modules())
