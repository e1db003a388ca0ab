"""Where a local stack is: its home folder, its ports, and the file that tells other commands its addresses.

Standard library only, so that any command can look cheaply.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stack.process import AlreadyRunningError

REPOSITORY = Path(__file__).resolve().parent.parent
STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"
STOPPING_SECONDS = 60  # how long a killed stack's programs may take to end; above the longest grace in local.py


@dataclass(frozen=True)
class Ports:
    """TCP ports on the loopback address. The first two are the Temporal CLI's own defaults."""

    temporal: int = 7233
    ui: int = 8233
    sandbox: int = 8377
    health: int = 8378

    @classmethod
    def free(cls) -> "Ports":
        """Four that nobody listens on now."""
        return cls(*free_ports(4))


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now; the kernel does not soon hand them out again."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass(frozen=True)
class Addresses:
    """Where each part of a running stack is, and the process ids of those that it started."""

    database_url: str
    worker_database_url: str
    temporal_address: str
    temporal_namespace: str
    ui_url: str
    sandbox_url: str
    health_url: str
    pids: dict[str, int] = field(default_factory=dict)


def default_home() -> Path:
    """DULY_HOME, or `.duly` in the checkout."""
    return Path(os.environ.get("DULY_HOME") or REPOSITORY / ".duly").absolute()


def read(home: Path | None = None) -> Addresses | None:
    """The addresses of the stack that runs on this home now; None when none does, whatever a killed one left."""
    home = home or default_home()
    try:
        text = (home / STATE_FILE).read_text(encoding="utf-8")
        with (home / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # somebody holds it: the stack runs
        return Addresses(**json.loads(text))
    except OSError:
        return None
    return None


def write(home: Path, addresses: Addresses) -> None:
    """Replaces the file in one step: a reader sees the old or the new one."""
    new = home / f"{STATE_FILE}.new"
    new.touch(mode=0o600)
    new.write_text(json.dumps(asdict(addresses), indent=2) + "\n", encoding="utf-8")
    new.replace(home / STATE_FILE)


def remove(home: Path) -> None:
    """After a clean stop there is nothing to tell."""
    (home / STATE_FILE).unlink(missing_ok=True)


def lock_home(home: Path, progress: Callable[[str], None]) -> int:
    """A descriptor whose lock says "a stack runs here". Guards inherit it and keep it after a killed owner.

    Raises AlreadyRunningError.
    """
    descriptor = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    told = False
    deadline = time.monotonic() + STOPPING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = int(os.pread(descriptor, 20, 0) or b"0")
            if _alive(owner) or time.monotonic() > deadline:
                os.close(descriptor)
                raise AlreadyRunningError(
                    f"a stack is running already on {home} (process {owner}); stop it there with Ctrl-C, "
                    f"or set DULY_HOME to another folder and choose other ports"
                ) from None
            if not told:
                progress("the last stack here was killed and its programs are still stopping; waiting for them")
                told = True
            time.sleep(0.1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
