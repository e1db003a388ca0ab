"""``duly test``, ``bench`` and ``sandbox``: other programs of this repository, with their own arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import typer

from cli.errors import unavailable
from cli.options import examples

# Everything after the command is the other program's, options too.
_PASS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    app.command(
        context_settings=_PASS,
        short_help="Run the tests.",
        epilog=examples("./duly test", "./duly test unit", "./duly test integration -k schedule -x"),
    )(test)
    app.command(
        context_settings=_PASS,
        short_help="Measure speed and cost.",
        epilog=examples("./duly bench", "./duly bench --help"),
    )(bench)
    app.command(
        context_settings=_PASS,
        short_help="Tell the sandbox provider what to do.",
        epilog=examples(
            "./duly sandbox tell --key order-17:confirmation:1 --behaviour commit_then_close",
            "./duly sandbox effects --prefix order- --json",
        ),
    )(sandbox)


def test(context: typer.Context) -> None:
    """Run the tests with pytest: all, or a folder of tests/ (unit, integration, faults), or pytest's own arguments."""
    _help(context)
    from config.environment import REPOSITORY

    folders = {path.name: str(path) for path in (REPOSITORY / "tests").iterdir() if path.is_dir()}
    arguments = [folders.get(argument, argument) for argument in context.args]
    # The settings are the repository's, wherever the command is typed; without a path so is what is run.
    if not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        os.chdir(REPOSITORY)
    become(["-m", "pytest", "--rootdir", str(REPOSITORY), "-c", str(REPOSITORY / "pyproject.toml"), *arguments])


def bench(context: typer.Context) -> None:
    """Measure speed and cost on the local stack, side by side with the usual ways."""
    if not context.args or context.args[0] not in ("-h", "--help"):
        from config.environment import REPOSITORY

        if not (REPOSITORY / "bench" / "__main__.py").exists():
            raise unavailable("bench/ is not in this checkout")
    become(["-m", "bench", *context.args])


def sandbox(context: typer.Context) -> None:
    """Tell the sandbox provider what to do with a key, or read its own record of effects."""
    _help(context)
    if not context.args:
        print(context.get_help())
        raise typer.Exit
    from cli.session import environment

    env = environment()
    asks = context.args[0] in ("tell", "effects") and not {"-h", "--help"}.intersection(context.args)
    if asks and "DULY_SANDBOX_URL" not in env.variables and not any(a.startswith("--url") for a in context.args):
        raise unavailable(
            f"no sandbox: DULY_SANDBOX_URL is not set and no local stack runs on {env.home}",
            'Run "./duly up" in another terminal, or give --url',
        )
    become(["-m", "provider.sandbox", *context.args], env.variables)


def _help(context: typer.Context) -> None:
    if context.args in (["--help"], ["-h"]):
        print(context.get_help())
        raise typer.Exit


def become(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> NoReturn:
    """This process becomes ``python arguments…``: signals and exit code are that program's."""
    from config.environment import REPOSITORY

    sys.stdout.flush()
    sys.stderr.flush()
    environ = os.environ if environ is None else environ
    # Our modules, and not those of the folder where the command is typed (-P): it may hold a `config` of its own.
    path = os.pathsep.join(filter(None, [str(REPOSITORY), environ.get("PYTHONPATH", "")]))
    os.execve(sys.executable, [sys.executable, "-P", *arguments], {**environ, "PYTHONPATH": path})
