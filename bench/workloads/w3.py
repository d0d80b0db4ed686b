"""W3 restart: killed with -9 inside a Retry-After window, five times in a row, and started again each time."""

import os
import random
import signal
import time

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench, say

PAGES, KILLS = 100, 5
LIMIT_SECONDS = 240
SETTLED_US = 50_000
"""An answer counts as received when it was complete this long before the kill."""

INTRODUCTION = f"""
Restart: fetch {PAGES} pages of the storm site of W1. The process is killed with kill -9 {KILLS} times, each time at a random moment inside a
`Retry-After` window, and restarted at once; the last start runs to its end (at most {LIMIT_SECONDS} s in total). Goal: no early request, no page lost,
and none fetched twice except those in flight.

Measured in the server's log. Early: a request after a restart, more than 10 ms before a deadline whose response was complete
50 ms before the kill. Fetched twice: a page served again although its first response was complete 50 ms before a kill. All numbers are from the worst run.
The moments of the kills are derived from the seed {{seed}} (set another with `W3_SEED`). There are fewer kills if a contestant finished before them.
"""


def run(bench: Bench) -> str:
    """The section for W3."""
    seed = int(os.environ.get("W3_SEED", "1"))
    rows = []
    for name, first, again in contestants(bench):
        if bench.wants(name):
            chance = random.Random(seed)
            row = bench.repeat(name, lambda: once(bench, first, again, chance))
            goal = None
            if name.startswith("comity"):
                goal = row["kills_least"] == KILLS and not (row["early_worst"] or row["lost_worst"] or row["twice_worst"])
            rows.append([name, row["runs"], row["kills_least"], row["early_worst"], row["lost_worst"], row["twice_worst"],
                         row["refusals_worst"], row["seconds"], goal])
    return report.section(bench, INTRODUCTION.format(seed=seed), rows, [
        "contestant", "runs", "kills", "early after restart", "pages lost", "fetched twice", "answers 429", "time, s", "goal"])


def contestants(bench: Bench):
    """Name, how to start on a list of URLs in a folder, how to start again."""
    def ours(file, folder):
        return fetchers.comity(bench, folder / "store", "storm", file, *fetchers.BEST)

    def ours_again(_file, folder):
        return ours(None, folder)

    def scrapy(**settings):
        return lambda file, folder: fetchers.scrapy(bench, file, JOBDIR=folder / "job", **settings)

    def crawlee(*options):
        return lambda file, folder: fetchers.crawlee(bench, file, folder / "storage", "--keep", *options)

    patient = {"AUTOTHROTTLE_ENABLED": True, "RETRY_TIMES": 1000}
    return [
        ("comity", ours, ours_again),
        ("Scrapy, JOBDIR", *[scrapy()] * 2),
        ("Scrapy, JOBDIR, AutoThrottle, 1000 retries", *[scrapy(**patient)] * 2),
        ("Crawlee, files", *[crawlee()] * 2),
        ("Crawlee, files, ThrottlingRequestManager", *[crawlee("--throttle")] * 2),
    ]


def once(bench: Bench, first, again, chance: random.Random) -> dict:
    """One contestant against a fresh storm site, killed and started again."""
    folder = bench.fresh_folder()
    with servers.storm(bench) as storm:
        file = urls.write(folder / "urls", storm.urls(PAGES))
        began, kills, command = time.time(), [], first(file, folder)
        while True:
            child = processes.start(command, processes.CLIENT_CORE, folder / "output", folder)
            since = time.time_ns() // 1000
            if len(kills) == KILLS or not reached_window(storm, child, since, chance, began + LIMIT_SECONDS):
                break
            processes.signal_group(child, signal.SIGKILL)
            kills.append(time.time_ns() // 1000)
            processes.end(child)
            command = again(file, folder)
        ended = processes.wait(child, folder / "output", began, max(1.0, began + LIMIT_SECONDS - time.time()))
        processes.check(command, ended, fetchers.accepted(command))
        requests = storm.requests()
    if not requests:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno request arrived")
    return {
        "kills_least": len(kills),
        "early_worst": early_after(requests, kills),
        "lost_worst": PAGES - judge.pages(requests),
        "twice_worst": twice_beyond_flight(requests, kills),
        "refusals_worst": judge.refusals(requests),
        "seconds": judge.span_seconds(requests),
    }


def reached_window(storm: servers.Storm, child, since: int, chance: random.Random, until: float) -> bool:
    """Waits for this process's first 429, then to a random moment of its window; false if the process ends before."""
    moment = None
    while time.time() < until:
        if processes.has_ended(child):
            say("  ended by itself before the kill")
            return False
        if moment is None:
            refused = [request.done for request in storm.requests() if request.status == 429 and request.start >= since]
            if refused:
                # Late enough that the answer counts as received, early enough that the window is still in force.
                moment = refused[0] + chance.randint(SETTLED_US + 20_000, judge.STORM_RETRY_AFTER_US - 500_000)
        elif time.time_ns() // 1000 >= moment:
            return True
        time.sleep(0.01)
    return False


def early_after(requests: list[judge.Request], kills: list[int]) -> int:
    """Requests after a kill that came before a deadline the killed process had been told."""
    return sum(
        any(request.start > kill
            and request.start < judge.stated_before(requests, kill - SETTLED_US) - judge.DEADLINE_TOLERANCE_US
            for kill in kills)
        for request in requests)


def twice_beyond_flight(requests: list[judge.Request], kills: list[int]) -> int:
    """Pages served again although an earlier answer was settled: not in flight at any kill."""
    served: dict[str, list[judge.Request]] = {}
    for request in requests:
        if request.status == 200:
            served.setdefault(request.path, []).append(request)
    in_flight = {request.path for request in requests for kill in kills
                 if request.start <= kill and request.done > kill - SETTLED_US}
    return sum(len(answers) - 1 for path, answers in served.items() if path not in in_flight)
