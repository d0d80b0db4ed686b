"""W13 service: check and record over HTTP keep-alive; what deciding costs against a service that decides nothing."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import time
import urllib.request

from . import processes, report, servers
from .bench import Bench, say

SIZES = (1_000, 100_000)
CONNECTIONS, SECONDS = 64, 8
WALK_SECONDS, PEERS_WALK_SECONDS = 120, 20
"""At most, for asking for each domain once; a peer that takes longer begins with what it has."""
LIMIT_SECONDS = 180
CPU_TO_BARE, TO_PEERS = 1.2, 10
LOAD = pathlib.Path(__file__).parent / "load.lua"
PEER = pathlib.Path(__file__).parent / "peers" / "serve_pyrate.py"

CONFIGURATION = """
robots = "ignore"

[default]
min_delay = "0s"
in_flight = "unlimited"
learning = "off"
"""

INTRODUCTION = f"""
Service: `check`, then `record` with the permit it returned, over {CONNECTIONS} open connections, with {SIZES[0]:,} and {SIZES[1]:,}
domains in random order. Goal: at most {CPU_TO_BARE} times the server CPU per request of a bare axum service that reads and writes the
same JSON and decides nothing; at least {TO_PEERS} times the requests per second of pyrate-limiter behind HTTP (the fastest of the four).

`comity serve` with its SQLite store on disk, no delay, `in_flight` unlimited, learning off, so that each check proceeds.
pyrate-limiter: one uvicorn process with uvloop and httptools, and one bucket per domain whose limit is never reached. It has nothing to record, so recording
costs it nothing. Redis runs on the same core, and its CPU time counts too.

Each server gets {SECONDS} s of load from wrk, after one pass over all domains (stopped after {PEERS_WALK_SECONDS} s for the peers). The servers take
turns, in alternating order. Every response is checked: a check that doesn't proceed with a permit, a record that isn't
fresh, or a broken connection aborts the benchmark. Afterwards, Comity's own counters must add up: permits granted minus permits recorded are the permits
in flight. CPU is that of the whole process, user and system. Medians of the runs. If the server's core is not fully busy, the load generator
was the limit.
"""

BARE, OURS = "bare axum service", "comity serve"
PEERS = (
    ("pyrate-limiter on Redis, default", "redis", []),
    ("pyrate-limiter on Redis, best", "redis", ["--best"]),
    ("pyrate-limiter on SQLite, default", "sqlite", []),
    ("pyrate-limiter on SQLite, best", "sqlite", ["--best"]),
)
PACKAGES = ("pyrate-limiter", "uvicorn", "uvloop", "httptools", "redis", "hiredis")
WHATS = ("rate", "cpu_us", "busy", "walk_rate", "p50_ms", "p99_ms")
COLUMNS = ["server", "domains", "runs", "requests/s", "÷ fastest peer", "CPU per request, µs", "÷ bare", "core busy", "median, ms", "99 %, ms",
           "first walk, domains/s", "goal"]


def run(bench: Bench) -> str:
    """The section for W13."""
    contestants = [one for one in all_contestants(bench) if bench.wants(one[0])]
    rows = []
    for domains in SIZES:
        turns = turns_of(bench, contestants, domains)
        found = bench.repeat(f"{domains:,} domains", lambda: next(turns))
        rows += cells(found, [name for name, _ in contestants], domains)
    programs = (wrk_version(), redis_version())
    return report.section(bench, INTRODUCTION, rows, COLUMNS, PACKAGES, programs, "the server on one, the load on the other")


def turns_of(bench: Bench, contestants: list, domains: int):
    """Each turn runs all servers; every other one begins with the last."""
    turn = 0
    while True:
        row = {}
        for name, start in contestants[::-1] if turn % 2 else contestants:
            measured = once(bench, start, domains, seed=turn + 1)
            say(f"  {name}: {measured}")
            row |= {f"{what} of {name}": measured[what] for what in WHATS}
        turn += 1
        yield row


def cells(found: dict, names: list[str], domains: int) -> list[list]:
    """The rows of one size."""
    def of(what: str, name: str):
        return found.get(f"{what} of {name}")

    fastest = max((of("rate", name) for name, *_ in PEERS if name in names), default=None)
    rows = []
    for name in names:
        to_peer = of("rate", name) / fastest if fastest else None
        to_bare = of("cpu_us", name) / of("cpu_us", BARE) if of("cpu_us", BARE) else None
        goal = None
        if name == OURS and to_peer and to_bare:
            goal = to_bare <= CPU_TO_BARE and to_peer >= TO_PEERS
        rows.append([name, domains, found["runs"], of("rate", name), to_peer, of("cpu_us", name), to_bare, of("busy", name),
                     of("p50_ms", name), of("p99_ms", name), of("walk_rate", name), goal])
    return rows


def once(bench: Bench, start, domains: int, seed: int) -> dict:
    """One server, from its start to its end."""
    folder = bench.fresh_folder()
    with start(folder) as server:
        walked = load(folder, server.port, domains, "walk", PEERS_WALK_SECONDS if server.is_peer else WALK_SECONDS)
        if walked["fresh"] < domains and not server.is_peer:
            raise processes.CouldNotRun(f"only {walked['fresh']} of {domains} domains were asked for in {WALK_SECONDS} s")
        before = server.cpu_seconds()
        loaded = load(folder, server.port, domains, seed, SECONDS)
        cpu = server.cpu_seconds() - before
        if not loaded["requests"]:
            raise processes.CouldNotRun(f"no answer in {SECONDS} s")
        if server.judge:
            server.judge(server.port, [walked, loaded])
    return {
        "rate": loaded["requests"] / loaded["seconds"],
        "cpu_us": cpu * 1e6 / loaded["requests"],
        "busy": cpu / loaded["seconds"],
        "walk_rate": walked["fresh"] / walked["seconds"],
        "p50_ms": loaded["p50_us"] / 1000,
        "p99_ms": loaded["p99_us"] / 1000,
    }


def load(folder: pathlib.Path, port: int, domains: int, how, seconds: int) -> dict:
    """What wrk counted; every answer must have been right."""
    command = [wrk_program(), "--threads", 1, "--connections", CONNECTIONS, "--duration", f"{seconds}s", "--timeout", "30s",
               "--script", LOAD, f"http://127.0.0.1:{port}", "--", domains, how]
    ended = processes.run(command, folder, LIMIT_SECONDS)
    counted = json.loads(ended.output.splitlines()[-1])
    wrong = counted["otherwise"] + counted["broken"]
    # A permit whose record was under way at the end is neither.
    unpaired = counted["proceeded"] - counted["fresh"]
    if wrong or not 0 <= unpaired <= CONNECTIONS or counted["proceeded"] + counted["fresh"] != counted["requests"]:
        raise processes.CouldNotRun(f"wrong answers: {counted}")
    return counted


class Server:
    """A server that runs, and those it needs."""

    def __init__(self, port: int, children: list, is_peer: bool = False, judge=None):
        self.port, self.children, self.is_peer, self.judge = port, children, is_peer, judge

    def cpu_seconds(self) -> float:
        """User and system time of all of its threads, so far."""
        return sum(_cpu_seconds(child.pid) for child in self.children)


def all_contestants(bench: Bench) -> list:
    """Name, and how to start it in a folder."""
    def peer(kind: str, options: list[str]):
        return lambda folder: pyrate(bench, folder, kind, options)

    return [
        (BARE, lambda folder: bare(bench, folder)),
        (OURS, lambda folder: comity(bench, folder)),
        *((name, peer(kind, options)) for name, kind, options in PEERS),
    ]


@contextlib.contextmanager
def bare(bench: Bench, folder: pathlib.Path):
    """The limit."""
    output = folder / "server"
    server = processes.start([bench.binaries / "bench-bare-service"], processes.SERVER_CORE, output, folder)
    try:
        yield Server(servers.wait_until(lambda: int(output.read_text().strip() or 0), server, output), [server])
    finally:
        processes.end(server)


@contextlib.contextmanager
def comity(bench: Bench, folder: pathlib.Path, settings: str = CONFIGURATION):
    """Ours, durable."""
    configuration, output, port = folder / "comity.toml", folder / "server", servers.free_port()
    configuration.write_text(settings)
    command = [bench.binaries / "comity", "serve", "--listen", f"127.0.0.1:{port}", "--store", f"sqlite:{folder / 'store'}",
               "--config", configuration, "--quiet"]
    server = processes.start(command, processes.SERVER_CORE, output, folder)
    try:
        servers.wait_for_port(port, server, output)
        yield Server(port, [server], judge=judge_ours)
    finally:
        processes.end(server)


def judge_ours(port: int, loads: list[dict]) -> None:
    """Its own count says the same as the load's, once it is added up in the store, which happens every second."""
    proceeded, fresh = (sum(load[key] for load in loads) for key in ("proceeded", "fresh"))
    # What was under way when a load ended was done, and its answer not counted.
    most = CONNECTIONS * len(loads)
    until = time.monotonic() + 10
    while True:
        granted, recorded, open_ones = counted(port)
        if granted - recorded == open_ones and 0 <= granted - proceeded <= most and 0 <= recorded - fresh <= most:
            return
        if time.monotonic() > until:
            raise processes.CouldNotRun(
                f"granted {granted}, recorded {recorded}, in flight {open_ones}, but answered: {loads}")
        time.sleep(0.1)


def counted(port: int) -> tuple[int, int, int]:
    """Permits granted, recorded and open, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()

    def metric(name: str) -> int:
        found = re.search(rf"^{re.escape(name)} (\d+)$", text, re.MULTILINE)
        if not found:
            raise processes.CouldNotRun(f"/metrics: no {name}:\n{text}")
        return int(found[1])

    return metric("comity_grants_total"), metric('comity_requests_total{outcome="success"}'), metric("comity_in_flight")


@contextlib.contextmanager
def pyrate(bench: Bench, folder: pathlib.Path, kind: str, options: list[str]):
    """The peer, with its Redis if it needs one."""
    with contextlib.ExitStack() as stack:
        children, place = [], folder / "buckets"
        if kind == "redis":
            place = servers.free_port()
            # As it comes it saves now and then; at its best never.
            quick = ["--save", "", "--appendonly", "no"] if options else []
            children.append(stack.enter_context(listening(
                [redis_program(), "--bind", "127.0.0.1", "--port", place, "--dir", folder, *quick], place, folder / "redis", folder)))
        port = servers.free_port()
        children.append(stack.enter_context(listening([bench.python, PEER, port, kind, place, *options], port,
                                                      folder / "server", folder)))
        yield Server(port, children, is_peer=True)


@contextlib.contextmanager
def listening(command: list, port: int, output: pathlib.Path, folder: pathlib.Path):
    """A server on the servers' core, once it listens."""
    server = processes.start(command, processes.SERVER_CORE, output, folder)
    try:
        servers.wait_for_port(port, server, output)
        yield server
    finally:
        processes.end(server)


def _cpu_seconds(pid: int) -> float:
    # The name in parentheses may hold anything; what follows it is numbers.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wrk_program() -> str:
    """Where wrk is."""
    return _program("wrk")


def redis_program() -> str:
    """Where Redis is."""
    return _program("redis-server")


def _program(name: str) -> str:
    program = shutil.which(name)
    if not program:
        raise processes.CouldNotRun(f"{name}: not found; install the package {name}")
    return program


def wrk_version() -> str:
    """It says so with the usage, and ends with 1."""
    return re.sub(r"^wrk (?:debian/)?(\S+).*", r"wrk \1", report.first_line([wrk_program(), "-v"], check=False))


def redis_version() -> str:
    """The number alone."""
    return re.sub(r".*v=(\S+).*", r"redis-server \1", report.first_line([redis_program(), "--version"]))
