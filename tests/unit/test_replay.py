"""Workflows that are out run on: every recorded history replays on this code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from config.converter import CONVERTER
from tests.determinism import SANDBOX
from tests.record_histories import FOLDER, SCENARIOS
from workflows import contract
from workflows.operation import Operation

HISTORIES = sorted(FOLDER.glob("*.json"))


def history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json("recorded", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path) -> None:
    await Replayer(workflows=[Operation], workflow_runner=SANDBOX, data_converter=CONVERTER).replay_workflow(
        history(path)
    )


def test_each_path_has_been_recorded() -> None:
    assert {path.stem for path in HISTORIES} >= SCENARIOS.keys()


@workflow.defn(name=contract.WORKFLOW)
class WithOneMoreTimer(Operation):
    """What somebody might write."""

    @workflow.init
    def __init__(self, start: contract.Start) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: contract.Start) -> str:
        await workflow.sleep(1)
        return await super().run(start)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_one_more_timer_is_noticed(path: Path) -> None:
    replayer = Replayer(
        workflows=[WithOneMoreTimer], workflow_runner=UnsandboxedWorkflowRunner(), data_converter=CONVERTER
    )
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(history(path))


def test_recorded_histories_name_no_machine() -> None:
    for path in HISTORIES:
        text = path.read_text(encoding="utf-8")
        assert "stackTrace" not in text, path.name
        events = json.loads(text)["events"]
        identities = {
            value for event in events for attributes in event.values() if isinstance(attributes, dict)
            for name, value in attributes.items() if name == "identity"
        }  # fmt: skip
        assert identities <= {"bench", "history-service"}, path.name
