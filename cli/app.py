"""The command ``duly``. Bodies import what they need, so that help needs neither Temporal nor SQLAlchemy."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from cli import change, decide, dispatch, import_file, look, passed_on, replay, schedule, setup, waiting, witness
from cli.errors import report
from cli.exit import OK, leave

# These hand their arguments to another program, --debug too.
PASSED_ON = frozenset({"bench", "sandbox", "test"})

app = typer.Typer(
    name="duly",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Carries out scheduled operations against outside systems and accounts for every one of them.",
    epilog="Exit codes: 0 done, 2 usage, 3 refused by a rule, 4 something it needs is unavailable. Times are UTC.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. May stand anywhere.")] = False,
) -> None:
    """Only declares it for the help: ``main`` takes it out of the arguments."""


for _module in (setup, schedule, import_file, look, waiting, change, decide, replay, witness, dispatch, passed_on):
    _module.register(app)


def main(arguments: list[str]) -> NoReturn:
    """Runs one command and ends the process with its exit code."""
    leave(run(arguments))


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code."""
    debug = False
    if not PASSED_ON.intersection(arguments[:2]):
        debug = "--debug" in arguments
        arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        app(arguments, prog_name="duly")
    except SystemExit as exit_:  # typer's way to end, also after usage errors
        return exit_.code if isinstance(exit_.code, int) else OK
    except Exception as error:  # noqa: BLE001 - the last resort of a command: everything is reported, nothing hidden
        return report(error, debug=debug)
    return OK
