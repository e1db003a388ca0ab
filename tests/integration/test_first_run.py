"""The first run of `duly` with a real venv and a real pip. The locks are empty, so that nothing is fetched."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stack.launcher import DEV_LOCK, WORKER_LOCK
from stack.state import REPOSITORY


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "stack").mkdir()
    shutil.copy(REPOSITORY / "duly", tmp_path)
    shutil.copy(REPOSITORY / "stack" / "launcher.py", tmp_path / "stack")
    for lock in (WORKER_LOCK, DEV_LOCK):
        (tmp_path / lock).write_text("# nothing\n")
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__main__.py").write_text("import os, sys\nprint(sys.argv[1:], os.getcwd(), sys.prefix)\n")
    return tmp_path


def run(checkout: Path, *arguments: str) -> subprocess.Popen[str]:
    folder = checkout / "elsewhere"
    folder.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.Popen(
        [str(checkout / "duly"), *arguments],
        cwd=folder,
        env={"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_first_runs_at_once_share_one_environment_and_keep_the_callers_folder(checkout: Path) -> None:
    runs = [run(checkout, "demo", "--once"), run(checkout, "up")]
    answers = [one.communicate(timeout=120) for one in runs]
    assert [one.returncode for one in runs] == [0, 0], answers
    assert sum("making .venv" in errors for _, errors in answers) == 1
    assert answers[0][0] == f"['demo', '--once'] {checkout}/elsewhere {checkout}/.venv\n"

    later = run(checkout, "show", "order-17:confirmation:1")
    output, errors = later.communicate(timeout=60)
    assert (output, errors) == (f"['show', 'order-17:confirmation:1'] {checkout}/elsewhere {checkout}/.venv\n", "")
