"""Rules about the code itself that no linter checks."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from config import crash

ROOT = Path(__file__).resolve().parents[2]
LINES = 400
"""More than anybody keeps in mind; most files have less than half."""


def files(*suffixes: str) -> list[Path]:
    """Ours: nothing in a folder that begins with a dot, nothing that is made by building."""
    found = [
        path for path in ROOT.rglob("*")
        if path.suffix in suffixes
        and not any(part.startswith(".") or part in ("build", "__pycache__") for part in path.relative_to(ROOT).parts)
    ]  # fmt: skip
    assert len(found) > 10
    return found


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in files(".py", ".sql")}
    assert {name: lines for name, lines in lengths.items() if lines > LINES} == {}


def test_an_init_file_holds_a_docstring_only() -> None:
    for path in files(".py"):
        if path.name == "__init__.py":
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert [type(node) for node in body] == [ast.Expr], path
            assert isinstance(body[0], ast.Expr), path
            assert isinstance(body[0].value, ast.Constant), path


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in files(".py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]  # fmt: skip
    assert silent == []


def loaded_by(statement: str) -> set[str]:
    """Names of all modules in a fresh interpreter that has run this."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_workflow_is_imported_without_database_http_and_the_rest_of_ours() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("import workflows.operation")}
    assert "workflows" in loaded
    forbidden = {"sqlalchemy", "psycopg", "alembic", "httpx", "h11", "pydantic", "structlog", "typer"}
    ours = {"activities", "cli", "config", "ledger", "provider", "reconcile", "stack", "worker"}
    assert loaded & (forbidden | ours) == set()


def test_every_crash_point_is_used_somewhere_in_the_real_path() -> None:
    code = [
        path for path in files(".py")
        if path.relative_to(ROOT).parts[0] in ("activities", "provider", "reconcile", "worker.py", "ledger")
    ]  # fmt: skip
    texts = {
        node.value for path in code for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }  # fmt: skip
    assert [point for point in crash.POINTS if point not in texts] == []


def test_installing_brings_no_import_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"] == {"packages": [], "py-modules": []}


@pytest.mark.slow
def test_a_built_wheel_holds_nothing_that_can_be_imported(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([str(uv), "build", "--wheel", "--out-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as opened:
        names = opened.namelist()
    assert names
    assert {name.partition("/")[0].rpartition(".")[2] for name in names} == {"dist-info"}
