"""The `duly` script and its launcher: what they say when something is missing, and when .venv is trusted."""

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from stack import launcher
from stack.launcher import DEV_LOCK, STAMP, WORKER_LOCK, LauncherError

SCRIPT = Path(launcher.__file__).resolve().parent.parent / "duly"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A checkout with locks of its own."""
    for lock in (WORKER_LOCK, DEV_LOCK):
        (tmp_path / lock).write_text(f"# {lock}\n")
    return tmp_path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is really installed; the locks that would have been are listed."""
    locks: list[str] = []

    def make_venv(folder: Path) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").touch()
        python = folder / "bin" / "python"
        python.touch(mode=0o755)

    monkeypatch.setattr(launcher, "make_venv", make_venv)
    monkeypatch.setattr(launcher, "install", lambda folder, lock: locks.append(lock.name))
    return locks


def fake_python(folder: Path, *, version: str, good: bool) -> Path:
    folder.mkdir()
    python = folder / "python3"
    python.write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python {version}' && exit 0\nexit {0 if good else 1}\n"
    )
    python.chmod(0o755)
    return folder


def test_a_python_that_is_too_old_is_named_with_what_to_do(tmp_path: Path) -> None:
    script = shutil.copy(SCRIPT, tmp_path)
    old = fake_python(tmp_path / "bin", version="3.9.2", good=False)
    for tool in ("sh", "dirname", "readlink"):
        found = shutil.which(tool)
        assert found
        (old / tool).symlink_to(found)
    answer = subprocess.run(
        ["/bin/sh", script, "demo"], env={"PATH": str(old)}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 4
    assert answer.stdout == ""
    assert "needs Python 3.11 or later on PATH and found Python 3.9.2" in answer.stderr
    assert "apt install python3 python3-venv" in answer.stderr


def test_a_newer_python_is_found_under_its_own_name(tmp_path: Path) -> None:
    script = shutil.copy(SCRIPT, tmp_path)
    folder = fake_python(tmp_path / "bin", version="3.9.2", good=False)
    newer = folder / "python3.12"
    newer.write_text('#!/bin/sh\n[ "$1" = -I ] && echo "ran $*"\nexit 0\n')
    newer.chmod(0o755)
    answer = subprocess.run(
        ["/bin/sh", script, "show", "a key"],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == f"ran -I {tmp_path}/stack/launcher.py show a key\n"


def test_a_link_to_the_script_finds_the_checkout(tmp_path: Path) -> None:
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    checkout.mkdir()
    elsewhere.mkdir()
    shutil.copy(SCRIPT, checkout)
    (elsewhere / "duly").symlink_to("../checkout/duly")
    folder = fake_python(tmp_path / "bin", version="3.11.9", good=True)
    (folder / "python3").write_text('#!/bin/sh\n[ "$1" = -I ] && echo "ran $2"\nexit 0\n')
    answer = subprocess.run(
        [str(elsewhere / "duly")], env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert answer.stdout == f"ran {checkout}/stack/launcher.py\n"


def test_a_python_without_ensurepip_is_told_which_package_brings_it(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stack.launcher.importlib.util.find_spec", lambda name: None if name == "ensurepip" else object()
    )
    with pytest.raises(LauncherError, match=r"no ensurepip.*apt install python3\.\d+-venv"):
        launcher.ensure_environment(repo, dev=False)
    assert not (repo / ".venv").exists()


def test_a_linux_without_glibc_is_told_so_before_anything_is_downloaded(
    repo: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.launcher.platform.system", lambda: "Linux")
    monkeypatch.setattr("stack.launcher.platform.libc_ver", lambda: ("", ""))
    with pytest.raises(LauncherError, match="glibc"):
        launcher.ensure_environment(repo, dev=True)
    assert built == []


def test_the_environment_is_made_once_and_then_trusted(repo: Path, built: list[str]) -> None:
    for _ in range(3):
        python = launcher.ensure_environment(repo, dev=True)
    assert python == repo / ".venv" / "bin" / "python"
    assert built == [DEV_LOCK]


def test_the_larger_set_serves_every_command_and_the_smaller_only_its_own(repo: Path, built: list[str]) -> None:
    launcher.ensure_environment(repo, dev=False)
    launcher.ensure_environment(repo, dev=True)
    launcher.ensure_environment(repo, dev=False)
    assert built == [WORKER_LOCK, DEV_LOCK]


def test_a_changed_lock_makes_the_same_set_anew(repo: Path, built: list[str]) -> None:
    launcher.ensure_environment(repo, dev=True)
    (repo / DEV_LOCK).write_text("# newer\n")
    launcher.ensure_environment(repo, dev=False)
    assert built == [DEV_LOCK, DEV_LOCK]


def test_an_environment_whose_python_is_gone_is_made_anew(repo: Path, built: list[str]) -> None:
    launcher.ensure_environment(repo, dev=True)
    (repo / ".venv" / "bin" / "python").unlink()
    launcher.ensure_environment(repo, dev=True)
    assert built == [DEV_LOCK, DEV_LOCK]


def test_an_environment_made_by_hand_is_replaced(repo: Path, built: list[str]) -> None:
    (repo / ".venv" / "by-hand").mkdir(parents=True)
    launcher.ensure_environment(repo, dev=True)
    assert not (repo / ".venv" / "by-hand").exists()
    assert built == [DEV_LOCK]


def test_a_build_that_fails_leaves_no_stamp_and_the_old_environment_in_place(
    repo: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.ensure_environment(repo, dev=False)

    def fail(folder: Path, lock: Path) -> None:
        assert not (folder / STAMP).exists()  # the stamp is the last thing written
        raise LauncherError("pip could not install")

    monkeypatch.setattr(launcher, "install", fail)
    with pytest.raises(LauncherError):
        launcher.ensure_environment(repo, dev=True)
    assert launcher.is_current(repo, dev=False)
    assert sorted(path.name for path in repo.iterdir()) == [".venv", DEV_LOCK, WORKER_LOCK]


def test_what_a_killed_build_left_is_cleared_and_not_used(repo: Path, built: list[str]) -> None:
    left = repo / ".venv.build-1"
    left.mkdir()
    (left / STAMP).write_text(f"{DEV_LOCK} {launcher.digest_of(repo / DEV_LOCK)}\n")
    launcher.ensure_environment(repo, dev=True)
    assert built == [DEV_LOCK]
    assert not left.exists()


def test_of_two_first_runs_at_once_one_builds_and_the_other_waits_for_it(
    repo: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(launcher, "say", lambda text: waiting.set() if "waiting" in text else None)

    def install(folder: Path, lock: Path) -> None:
        assert waiting.wait(20)  # the other has come and found the lock held
        built.append(lock.name)

    monkeypatch.setattr(launcher, "install", install)
    runs = [threading.Thread(target=launcher.ensure_environment, args=(repo,), kwargs={"dev": True}) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert built == [DEV_LOCK]
    assert launcher.is_current(repo, dev=True)


def test_scripts_name_the_interpreter_where_it_will_be(tmp_path: Path) -> None:
    new, final = tmp_path / ".venv.build-1", tmp_path / ".venv"
    (new / "bin").mkdir(parents=True)
    (new / "pyvenv.cfg").write_text(f"command = python -m venv {new}\n")
    (new / "bin" / "tool").write_text(f"#!{new}/bin/python\n")
    launcher.relocate(new, final)
    assert (new / "bin" / "tool").read_text() == f"#!{final}/bin/python\n"
    assert (new / "pyvenv.cfg").read_text() == f"command = python -m venv {final}\n"
