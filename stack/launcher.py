"""Makes `.venv` when it is needed, then becomes `python -m cli` in it.

Runs before anything is installed, so it imports the standard library only. The script `duly` has found the Python.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

UNAVAILABLE = 4  # exit code: something it needs is not there (cli/exit.py holds the list; it cannot be imported here)

WORKER_LOCK = "requirements.lock"
DEV_LOCK = "requirements-dev.lock"
# These commands start the local stack or the tests; all others run with the worker's packages alone.
DEV_COMMANDS = frozenset({"bench", "demo", "rehearse", "test", "up"})
STAMP = "duly.stamp"  # inside .venv, written last: "<lock file> <its sha256>". No stamp, no trust.


class LauncherError(Exception):
    """Something is missing; the text says what, and what to do."""


def main(arguments: list[str]) -> NoReturn:
    """Runs one command. Exits 4 with a sentence when the environment cannot be made."""
    repo = Path(__file__).resolve().parent.parent
    command = next((word for word in arguments if not word.startswith("-")), "")
    try:
        python = ensure_environment(repo, dev=command in DEV_COMMANDS)
    except LauncherError as error:
        print(f"duly: {error}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    except KeyboardInterrupt:
        print("duly: stopped; nothing was changed", file=sys.stderr)
        sys.exit(130)  # what shells report for Ctrl-C
    # The caller's folder stays the current one, off the import path (-P): it may well hold a `config` of its own.
    path = os.pathsep.join(filter(None, [str(repo), os.environ.get("PYTHONPATH", "")]))
    os.execve(python, [str(python), "-P", "-m", "cli", *arguments], {**os.environ, "PYTHONPATH": path})


def ensure_environment(repo: Path, *, dev: bool) -> Path:
    """The Python of an environment that matches the lock file, made first if it must be. Many may call this at once.

    Raises LauncherError.
    """
    python = repo / ".venv" / "bin" / "python"
    if not is_current(repo, dev=dev):
        with build_lock(repo):
            if not is_current(repo, dev=dev):  # somebody else may have made it while we waited
                build(repo, DEV_LOCK if dev or stamped(repo)[0] == DEV_LOCK else WORKER_LOCK)
    return python


def is_current(repo: Path, *, dev: bool) -> bool:
    """Whether `.venv` was finished and made from the lock file as it stands now. The dev set contains the worker's."""
    lock, digest = stamped(repo)
    names = {DEV_LOCK} if dev else {DEV_LOCK, WORKER_LOCK}
    works = os.access(repo / ".venv" / "bin" / "python", os.X_OK)  # false when its base Python was removed
    return works and lock in names and digest == digest_of(repo / lock)


def stamped(repo: Path) -> tuple[str, str]:
    """Lock file name and digest on the stamp; empty strings when there is none that can be read."""
    try:
        lock, digest = (repo / ".venv" / STAMP).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return "", ""
    return lock, digest


def digest_of(lock: Path) -> str:
    """Hex SHA-256 of a lock file; empty when it is missing (an image may carry only the worker's)."""
    try:
        return hashlib.sha256(lock.read_bytes()).hexdigest()
    except OSError:
        return ""


@contextlib.contextmanager
def build_lock(repo: Path) -> Iterator[None]:
    """Held by one builder at a time. The kernel drops it with the process: a killed build blocks nobody."""
    folder = os.open(repo, os.O_RDONLY)  # a folder can be locked: no lock file to leave lying about
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another duly is setting up .venv; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def build(repo: Path, lock: str) -> None:
    """Makes the environment beside its final place, stamps it, and moves it there. The caller holds the build lock."""
    check_platform()
    if not digest_of(repo / lock):
        raise LauncherError(f"{lock} is missing from {repo}, so there is nothing to install from")
    for leftover in [*repo.glob(".venv.build-*"), *repo.glob(".venv.old-*")]:  # of a killed build: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    new, old, final = repo / f".venv.build-{os.getpid()}", repo / f".venv.old-{os.getpid()}", repo / ".venv"
    try:
        say(f"making .venv with Python {platform.python_version()} from {lock} (once; about a minute)")
        make_venv(new)
        install(new, repo / lock)
        relocate(new, final)
        (new / STAMP).write_text(f"{lock} {digest_of(repo / lock)}\n", encoding="ascii")
        if final.exists() or final.is_symlink():
            final.rename(old)
        new.rename(final)
    except OSError as error:
        raise LauncherError(f"cannot make {final}: {error}") from error
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
    say(".venv is ready")


def check_platform() -> None:
    """Says in a sentence what this machine lacks, before anything is downloaded."""
    if platform.system() == "Linux" and platform.libc_ver()[0] != "glibc":
        raise LauncherError(
            "Temporal's SDK is built for Linux with glibc and for macOS, and this Linux has another C library; "
            "use an image based on Debian, Ubuntu or Fedora"
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise LauncherError(
            f"this Python {version} cannot make virtual environments (no ensurepip); "
            f"on Debian or Ubuntu: apt install python{version}-venv"
        )


def make_venv(folder: Path) -> None:
    """An empty environment with the pip that this Python brings."""
    made = subprocess.run(  # from inside a .venv too this builds on the Python below it
        [sys.executable, "-I", "-m", "venv", "--prompt", "duly", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if made.returncode:
        raise LauncherError(f"python -m venv failed:\n{made.stdout.strip()}")
    (folder / ".gitignore").write_text("*\n", encoding="ascii")


def install(folder: Path, lock: Path) -> None:
    """Installs exactly what the lock file pins, every file checked by hash. The user's pip settings apply (mirrors).

    Wheels only: nothing is compiled and no package's set-up code is run.
    """
    total = sum(1 for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line and line[:1].isalnum())
    python = str(folder / "bin" / "python")
    options = ["--require-hashes", "--only-binary", ":all:", "--no-user", "--no-input", "--disable-pip-version-check"]
    command = [python, "-m", "pip", "install", *options, "--progress-bar", "off", "--requirement", str(lock)]
    tail: deque[str] = deque(maxlen=15)  # enough for pip's own explanation of a failure
    done = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            tail.append(line)
            if line.startswith(("Collecting ", "Ignoring ")):
                done += 1
                progress(
                    f"fetching {done} of {total}: {line.split()[1].partition('==')[0].rstrip(':')}",
                    every=done % 10 == 0,
                )
            elif line.startswith("Installing "):
                progress("installing", every=True)
    progress("", every=False)
    if pip.returncode:
        raise LauncherError(
            f"pip could not install {lock.name}:\n{''.join(tail).rstrip()}\n"
            f"duly: the packages exist for Linux (x86-64 and arm64, glibc) and macOS with Python 3.11 to 3.14; this is "
            f"{platform.system()} {platform.machine()} with Python {platform.python_version()}. Where the local stack "
            f"cannot be installed, run the worker with {WORKER_LOCK} and point DULY_DATABASE_URL and TEMPORAL_ADDRESS "
            f"at running servers."
        )


def relocate(folder: Path, final: Path) -> None:
    """Scripts name their interpreter by its full path: make that the place where the environment will be."""
    before, after = os.fsencode(folder), os.fsencode(final)
    for path in [folder / "pyvenv.cfg", *(folder / "bin").iterdir()]:
        if path.is_symlink() or path.stat().st_size > 100_000:  # bytes: scripts are short, the rest are programs
            continue
        text = path.read_bytes()
        if before in text:
            path.write_bytes(text.replace(before, after))


def say(text: str) -> None:
    """One line of progress, on standard error so that `--json` output stays clean."""
    print(f"duly: {text}", file=sys.stderr, flush=True)


def progress(text: str, *, every: bool) -> None:
    """A line that is overwritten on a terminal; elsewhere (a CI log) only now and then a line of its own."""
    if sys.stderr.isatty():
        print(f"\r\033[K{'duly: ' + text if text else ''}", end="", file=sys.stderr, flush=True)
    elif every:
        say(text)


if __name__ == "__main__":
    main(sys.argv[1:])
