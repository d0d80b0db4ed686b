"""W15 small things: what a command costs to start, a process that waits, a site in memory, and a page on disk."""

import contextlib
import os
import pathlib
import re
import shutil
import statistics
import time

from . import fetchers, followed, processes, report, servers, urls, w13
from .bench import Bench, say
from .w5 import CONFIGURATION

STARTS, WARM_UP, KNOWN_AT_START = 200, 20, 10_000
SITES, SOURCES, A_DAY_MINUTES = 1_000, 100, 24 * 60
SETTLE_SECONDS, IDLE_SECONDS = 10, 30
FEW, MANY, WRITE_SECONDS = 1_000, 100_000, 3
HOSTS, PAGES = 50, 100_000
LIMIT_SECONDS, STOP_SECONDS = 120, 10
TO_SQLITE, IDLE_PERCENT = 2, 0.2

LEARNING = """
robots = "ignore"

[default]
min_delay = "0s"
in_flight = "unlimited"
"""

INTRODUCTION = f"""
Small things. Goal: a `comity check` takes at most {TO_SQLITE} × as long as `sqlite3 FILE 'select 1'` on the same store, and a process that only waits takes at most
{IDLE_PERCENT} % of a core. The other numbers have no goal.

Start: the two commands take turns on one core, {STARTS} times each after {WARM_UP} to warm up, on a store with {KNOWN_AT_START:,} sites. Times run from the start of a process to
its end; CPU is user and system. Each check is for another site and reserves its slot, which is written to the store; sqlite3 opens the same file and
reads its header.

Idle: `comity serve` on a store with {SITES:,} sites, without requests, and `comity run --watch` with {SOURCES} sources, none of them due for a day. CPU is counted for
{IDLE_SECONDS} s, after {SETTLE_SECONDS} s to settle. Memory: what `comity serve` (learning on) takes after a check and a record for each of {MANY:,} sites, minus what it takes
after {FEW:,} sites, per site; a site stays in memory for a minute. Disk: the files of the store, including its log, after a job of {PAGES:,} pages on {HOSTS} hosts
(`--format none`), per million pages. Medians of the runs.
"""

COLUMNS = ["what", "runs", "comity", "sqlite3", "÷ sqlite3", "goal"]
WALL, CPU = "`comity check`: whole process, ms", "`comity check`: CPU, ms"
SERVE, WATCH = "idle `comity serve`: CPU, % of a core", "idle `comity run --watch`: CPU, % of a core"
MEMORY, DISK = "`comity serve`: memory per site, bytes", "store: MB per 1,000,000 pages"


def run(bench: Bench) -> str:
    """The section for W15."""
    rows = []
    if bench.wants("start"):
        found = starts(bench)
        for what in (WALL, CPU):
            ours, theirs = (found[name][what] for name in ("comity", "sqlite3"))
            goal = ours / theirs <= TO_SQLITE if what == WALL else None
            rows.append([what, STARTS, ours, theirs, ours / theirs, goal])
    if bench.wants("idle"):
        found = bench.repeat("idle", lambda: idle(bench))
        rows += [[what, found["runs"], found[what], None, None, found[what] <= IDLE_PERCENT] for what in (SERVE, WATCH)]
    for name, what, once in (("memory", MEMORY, memory), ("disk", DISK, disk)):
        if bench.wants(name):
            found = bench.repeat(name, lambda: once(bench))
            rows.append([what, found["runs"], found[what], None, None, None])
    return report.section(bench, INTRODUCTION, rows, COLUMNS, peers=(), programs=(sqlite_version(), w13.wrk_version()),
                          pinned="services on one, commands on the other")


def starts(bench: Bench) -> dict:
    """Medians of the starts of `comity check` and of sqlite3."""
    folder = known(bench, KNOWN_AT_START)
    store, sites = folder / "store", iter(range(KNOWN_AT_START))
    commands = {
        "comity": lambda: [bench.binaries / "comity", "check", f"https://site-{next(sites):06}.example/", "--store",
                           f"sqlite:{store}", "--quiet"],
        "sqlite3": lambda: [sqlite_program(), store, "select 1"],
    }
    measured = {name: [] for name in commands}
    say(f"start: {WARM_UP} and {STARTS} runs each")
    # By then the delay after the requests of the service is over, so that each check proceeds.
    time.sleep(WRITE_SECONDS)
    with pinned(processes.CLIENT_CORE):
        for turn in range(WARM_UP + STARTS):
            for name in list(commands)[::-1] if turn % 2 else commands:
                measured[name].append(spawned(commands[name]()))
    found = {name: {WALL: statistics.median(wall for wall, _ in runs[WARM_UP:]),
                    CPU: statistics.median(cpu for _, cpu in runs[WARM_UP:])} for name, runs in measured.items()}
    say(f"  {found}")
    return found


def spawned(command: list) -> tuple[float, float]:
    """Wall and CPU milliseconds of one process, from its start to its end."""
    words = [str(part) for part in command]
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    began = time.monotonic_ns()
    child = os.posix_spawn(words[0], words, processes.environment(), file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    wall = (time.monotonic_ns() - began) / 1e6
    if code := os.waitstatus_to_exitcode(status):
        raise processes.CouldNotRun(f"{' '.join(words)}\nended with code {code}")
    return wall, (usage.ru_utime + usage.ru_stime) * 1e3


@contextlib.contextmanager
def pinned(core: int):
    """What is started inside runs on one core, as contestants do."""
    before = os.sched_getaffinity(0)
    if len(before) > 1:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def idle(bench: Bench) -> dict:
    """The CPU of two processes that have nothing to do, side by side."""
    serving, watching = known(bench, SITES), followed_only(bench)
    with w13.comity(bench, serving) as server, watch(bench, watching) as watcher:
        children = {SERVE: server.children[0], WATCH: watcher}
        time.sleep(SETTLE_SECONDS)
        before = {what: cpu_seconds(child) for what, child in children.items()}
        time.sleep(IDLE_SECONDS)
        return {what: (cpu_seconds(child) - before[what]) * 100 / IDLE_SECONDS for what, child in children.items()}


def known(bench: Bench, sites: int) -> pathlib.Path:
    """The folder of a store with so many sites, which a service left there."""
    folder = bench.fresh_folder()
    with w13.comity(bench, folder) as server:
        walk(folder, server.port, sites)
        processes.end_gently(server.children[0], folder / "server", time.time(), STOP_SECONDS)
    return folder


def walk(folder: pathlib.Path, port: int, sites: int) -> None:
    """One check and one record for each site."""
    walked = w13.load(folder, port, sites, "walk", LIMIT_SECONDS)
    if walked["fresh"] < sites:
        raise processes.CouldNotRun(f"only {walked['fresh']} of {sites} sites were asked for in {LIMIT_SECONDS} s")


def followed_only(bench: Bench) -> pathlib.Path:
    """The folder of a store with sources that were fetched just now."""
    folder = bench.fresh_folder()
    store = folder / "store"
    # Without sources, it only makes the store.
    processes.run([bench.binaries / "comity", "run", "--quiet", "--store", f"sqlite:{store}"], folder, LIMIT_SECONDS)
    feeds = [f"http://{host}:9/feed" for host in urls.hosts(SOURCES)]
    followed.add_fetched_sources(store, feeds, A_DAY_MINUTES)
    return folder


@contextlib.contextmanager
def watch(bench: Bench, folder: pathlib.Path):
    """`comity run --watch`, which has nothing to do."""
    command = [bench.binaries / "comity", "run", "--watch", "--quiet", "--store", f"sqlite:{folder / 'store'}"]
    child = processes.start(command, processes.CLIENT_CORE, folder / "output", folder)
    try:
        yield child
    finally:
        processes.end(child)


def cpu_seconds(child) -> float:
    """User and system time of a process that runs, of all threads it ever had, to the nanosecond."""
    if processes.has_ended(child):
        raise processes.CouldNotRun(f"{' '.join(map(str, child.args))}\nended")
    # The clock of another process, as clock_getcpuclockid(3) makes it: /proc would count in hundredths of a second.
    return time.clock_gettime(~child.pid << 3 | 2)


def memory(bench: Bench) -> dict:
    """The memory of a site after a check and a record."""
    folder, taken = bench.fresh_folder(), {}
    with w13.comity(bench, folder, LEARNING) as server:
        for sites in (FEW, MANY):
            walk(folder, server.port, sites)
            time.sleep(WRITE_SECONDS)
            taken[sites] = resident_bytes(server.children[0].pid)
    say(f"  {taken}")
    return {MEMORY: (taken[MANY] - taken[FEW]) / (MANY - FEW)}


def resident_bytes(pid: int) -> int:
    """The memory that a process has at the moment."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024


def disk(bench: Bench) -> dict:
    """How much a job adds to a store."""
    folder = bench.fresh_folder()
    store, configuration = folder / "store", folder / "comity.toml"
    configuration.write_text(CONFIGURATION)
    with servers.judge_server(bench) as server:
        file = urls.write(folder / "urls", urls.in_turn(server, urls.hosts(HOSTS), PAGES // HOSTS))
        command = fetchers.comity(bench, store, "growth", file, "--config", configuration, *fetchers.BEST)
        processes.run(command, folder, LIMIT_SECONDS)
        if (fetched := server.arrivals().pages) != PAGES:
            raise processes.CouldNotRun(f"{fetched} pages were fetched instead of {PAGES}")
    sizes = {path.name: path.stat().st_size for path in folder.glob("store*")}
    say(f"  {sizes}")
    return {DISK: sum(sizes.values()) / PAGES}


def sqlite_program() -> str:
    """Where sqlite3 is."""
    program = shutil.which("sqlite3")
    if not program:
        raise processes.CouldNotRun("sqlite3: not found; install the package sqlite3")
    return program


def sqlite_version() -> str:
    """The number alone."""
    return f"sqlite3 {report.first_line([sqlite_program(), '--version']).split()[0]}"
