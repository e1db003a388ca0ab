"""What the documents say is so: commands, variables, links, examples.

``python -m tests.unit.test_docs`` writes docs/commands.md anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.app import app
from config.crash import POINTS
from config.environment import REPOSITORY, VARIABLES
from config.search_attributes import SEARCH_ATTRIBUTES
from config.settings import load

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PAGE = REPOSITORY / "docs" / "commands.md"
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("bench/*.md")])
PASSED_ON = {"bench", "sandbox", "test"}
"""They hand their arguments to other programs."""

EXIT_CODES = {
    0: "done",
    1: "a defect of Duly (`--debug` shows where); of `demo`: something was duplicated, lost or late",
    2: "usage: what was typed, or stands in a file, cannot be used",
    3: "refused by a rule; the message says which",
    4: "something it needs is unavailable; the message says what to do",
    130: "Ctrl-C",
}


def commands_page() -> str:
    """docs/commands.md, from the commands themselves."""
    lines = [
        "# Commands",
        "",
        "Made from the commands' own help, which says more: `./duly COMMAND --help`. Every command that reads has",
        "`--json`. Times are ISO 8601 with a zone, `now`, or `+10m`; what is printed is UTC.",
        "",
        "| command | what it does |",
        "| --- | --- |",
    ]
    for name, command in COMMANDS.items():
        text = " ".join((command.help or "").split("\n\n")[0].split())
        lines.append(f"| `{name}` | {text} |")
    lines += ["", "## Examples", "", "```"]
    for command in COMMANDS.values():
        lines += [line[2:] for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    lines += ["```", "", "## Variables", "", "| variable | what it says |", "| --- | --- |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    lines += [
        "",
        "`duly.toml` may name more, as `${NAME}` or `${NAME:-default}`. Where Temporal is, the standard `TEMPORAL_*`",
        "variables and client profiles say; else it is the local stack's server.",
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
    ]
    return "\n".join(lines)


def duly_lines(text: str) -> Iterator[list[str]]:
    """The arguments of every ``./duly …`` in code, without comments, pipes and redirections."""
    blocks = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    spans = re.findall(r"`(\./duly [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line.strip().removeprefix("$ ") for line in blocks.splitlines()] + spans
    for line in lines:
        words = shlex.split(line, comments=True) if line.startswith("./duly ") else []
        for stop in ("|", ">", "&"):
            words = words[: words.index(stop)] if stop in words else words
        if words:
            yield words[1:]


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == commands_page(), "run: .venv/bin/python -m tests.unit.test_docs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_command_line_in_a_document_can_be_typed(document: Path) -> None:
    for words in duly_lines(document.read_text(encoding="utf-8")):
        if words[0] in ("--help", "-h", "COMMAND"):
            continue
        assert words[0] in COMMANDS, words
        if words[0] not in PASSED_ON and "…" not in words:
            command = COMMANDS[words[0]]
            given = words[1:]
            if given in (["--help"], []):  # named, not shown: arguments are left out
                continue
            command.make_context(words[0], given)  # raises for what cannot be typed


def test_a_command_line_that_cannot_be_typed_is_found() -> None:
    code = "$ ./duly list --stale | head\n./duly cancel KEY \\\n    --reason 'so'  # why\n"
    text = f"Run `./duly lost --now`.\n\n```\n{code}```\n"
    lines = list(duly_lines(text))
    assert lines == [["list", "--stale"], ["cancel", "KEY", "--reason", "so"], ["lost", "--now"]]
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["list"].make_context("list", lines[0][1:])


def test_every_variable_in_code_and_documents_is_known() -> None:
    known = {*VARIABLES, *re.findall(r"DULY_[A-Z_]+", (REPOSITORY / "duly.toml").read_text(encoding="utf-8"))}
    sources = [path for folder in ("activities", "bench", "cli", "config", "ledger", "provider", "reconcile", "stack")
               for path in (REPOSITORY / folder).rglob("*.py")]  # fmt: skip
    for path in [*sources, REPOSITORY / "worker.py", *DOCUMENTS]:
        found = set(re.findall(r"\bDULY_[A-Z]+(?:_[A-Z]+)*\b", path.read_text(encoding="utf-8")))
        assert found <= known, (path, found - known)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_to_a_file_leads_to_one(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_every_file_and_test_that_testing_names_is_there() -> None:
    text = (REPOSITORY / "TESTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|\.ci)/[\w./-]*)`", text):
        assert (REPOSITORY / path).exists(), path
    code = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in code, name


def test_the_configuration_in_the_readme_can_be_used(tmp_path: Path) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "duly.toml"
    path.write_text(toml, encoding="utf-8")
    settings = load(path, {"MAIL_TOKEN": "a-token"})
    assert list(settings.kinds) == ["order.confirmation"]


def test_the_page_about_temporal_has_every_search_attribute() -> None:
    text = (REPOSITORY / "docs" / "temporal.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(Duly[A-Z]\w+)`", text)) == SEARCH_ATTRIBUTES.keys()


def test_testing_names_every_crash_point() -> None:
    text = (REPOSITORY / "TESTING.md").read_text(encoding="utf-8")
    assert all(f"`{point}`" in text for point in POINTS)


if __name__ == "__main__":
    PAGE.write_text(commands_page(), encoding="utf-8")
