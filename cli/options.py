"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import times

Key = Annotated[str, typer.Argument(metavar="KEY", help="The operation's key.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
Due = Annotated[str, typer.Option(metavar="TIME", help=f"When it should happen: {times.HELP}.")]
Deadline = Annotated[str, typer.Option(metavar="TIME", help="After this it is not sent any more; the same forms.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in history.")]


def examples(*lines: str) -> str:
    """An epilog that keeps its lines."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
