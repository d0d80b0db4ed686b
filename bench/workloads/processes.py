"""Starting, measuring and ending programs, each in a process group of its own.

Servers run on the first core and contestants on the second, so that all are pinned alike. A workload may choose other cores.
"""

import atexit
import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

SERVER_CORE, CLIENT_CORE = 0, 1
BOTH_CORES = f"{SERVER_CORE},{CLIENT_CORE}"

_alive: set[subprocess.Popen] = set()


class CouldNotRun(Exception):
    """A contestant or a server did not run at all: the benchmark says so and fails."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code, or `timed_out`; wall and CPU seconds."""

    code: int
    timed_out: bool
    began: float
    seconds: float
    cpu_seconds: float
    output: str


def start(command: list, core: int | str, log: pathlib.Path, folder: pathlib.Path) -> subprocess.Popen:
    """Starts `command` in `folder`; standard output and standard error go to `log`."""
    pinned = ["taskset", "-c", core] if (os.cpu_count() or 1) > 1 else []
    with log.open("wb") as output:
        try:
            child = subprocess.Popen([str(part) for part in pinned + command], stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT, cwd=folder, start_new_session=True, env=environment())
        except OSError as problem:
            raise CouldNotRun(f"{command[0]}: {problem.strerror}") from problem
    _alive.add(child)
    return child


def environment() -> dict[str, str]:
    """Ours without what would change a contestant unseen: proxies, its own settings, our module path."""
    return {name: value for name, value in os.environ.items()
            if not name.lower().endswith("_proxy") and not name.startswith(("COMITY_", "CRAWLEE_", "PYTHONPATH"))}


def wait(child: subprocess.Popen, log: pathlib.Path, began: float, limit: float) -> Ended:
    """Waits until `child` ends, at most `limit` seconds, then ends its whole group."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        signal_group(child, signal.SIGKILL)

    timer = threading.Timer(limit, expire)
    timer.start()
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    finally:
        timer.cancel()
    seconds = time.time() - began
    # Until it is reaped its number cannot belong to another group.
    signal_group(child, signal.SIGKILL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    _alive.discard(child)
    return Ended(code=child.returncode, timed_out=expired.is_set(), began=began, seconds=seconds,
                 cpu_seconds=usage.ru_utime + usage.ru_stime, output=log.read_text(errors="replace"))


def run(command: list, folder: pathlib.Path, limit: float, accept: tuple[int, ...] = (0,),
        core: int | str = CLIENT_CORE) -> Ended:
    """Runs a contestant to its end; an exit code other than those in `accept` means that it could not run."""
    log = folder / "output"
    began = time.time()
    ended = wait(start(command, core, log, folder), log, began, limit)
    check(command, ended, accept)
    return ended


def run_together(commands: list[list], folders: list[pathlib.Path], limit: float, accept=(0,)) -> list[Ended]:
    """Runs several contestants at the same time, each in its folder."""
    began = time.time()
    children = [start(command, CLIENT_CORE, folder / "output", folder) for command, folder in zip(commands, folders)]
    ended = [wait(child, folder / "output", began, max(1.0, began + limit - time.time()))
             for child, folder in zip(children, folders)]
    for command, one in zip(commands, ended):
        check(command, one, accept)
    return ended


def check(command: list, ended: Ended, accept: tuple[int, ...]) -> None:
    """Raises when the program failed by itself."""
    if not ended.timed_out and ended.code not in accept:
        tail = "\n".join(ended.output.splitlines()[-15:])
        raise CouldNotRun(f"{' '.join(map(str, command))}\nended with code {ended.code}:\n{tail}")


def has_ended(child: subprocess.Popen) -> bool:
    """Whether `child` has ended, leaving its status for `wait`."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def signal_group(child: subprocess.Popen, number: int) -> None:
    """Signals the whole group of `child`, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def end(child: subprocess.Popen) -> None:
    """Ends `child` and whatever it started; harmless when it has already ended."""
    if child.returncode is None:
        signal_group(child, signal.SIGKILL)
        child.wait()
    _alive.discard(child)


def stop_server(server: subprocess.Popen) -> None:
    """Asks a server to stop, so that it can reap its own workers, and ends it after two seconds; PHP's does not reap them."""
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(2)
    signal_group(server, signal.SIGKILL)
    end(server)


def end_gently(child: subprocess.Popen, log: pathlib.Path, began: float, limit: float) -> Ended:
    """Interrupts as Ctrl-C does, and ends the program for good after `limit` seconds."""
    signal_group(child, signal.SIGINT)
    return wait(child, log, began, limit)


@contextlib.contextmanager
def ended_at_exit():
    """Nothing that was started here outlives this block, whatever ends it."""

    def stop(number, _frame) -> None:
        sys.exit(128 + number)

    def end_all() -> None:
        for child in list(_alive):
            end(child)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    atexit.register(end_all)
    try:
        yield
    finally:
        end_all()


def raise_open_file_limit() -> None:
    """To the hard limit: two thousand hosts are two thousand connections at each end."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
