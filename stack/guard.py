"""Runs one program and stops it when whoever started this ends, however that ends.

    python -IS guard.py GRACE_SECONDS SIGNAL USER program argument...

Standard input is a pipe that the starter holds open and never writes to. Its end of file means stop: the starter closed
it, or was killed (the kernel closes it then). Writes the program's process id to standard output; the program itself
writes to standard error. USER is a system user to run as, or `-`. Exits as the program did. Standard library only.
"""

import os
import signal
import subprocess
import sys
import threading


def main(grace: float, stop_signal: signal.Signals, user: str, command: list[str]) -> int:
    """Returns the program's exit code; 128 + n when signal n ended it, 127 when it could not be run."""
    as_user = {} if user == "-" else {"user": user, "group": user, "extra_groups": []}
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, **as_user)  # type: ignore[call-overload]
    except (OSError, LookupError) as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr)
        return 127  # what shells report

    def stop() -> None:
        child.send_signal(stop_signal)
        try:
            child.wait(grace)
        except subprocess.TimeoutExpired:
            child.kill()

    def stop_with_starter() -> None:
        while os.read(0, 1):
            pass
        stop()

    # A terminal or shell must not stop the programs out of order; only the end of the pipe does, or a TERM to us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop, daemon=True).start())
    threading.Thread(target=stop_with_starter, daemon=True).start()
    os.write(1, f"{child.pid}\n".encode())
    os.close(1)
    code = int(child.wait())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), signal.Signals[sys.argv[2]], sys.argv[3], sys.argv[4:]))
