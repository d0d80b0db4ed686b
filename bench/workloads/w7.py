"""W7 head of line: one host that refuses everything must not hold up the others."""

import time

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench, say

FREE_HOSTS, PAGES, DELAY_MS, BLOCKED_TASKS = 100, 20, 100, 10_000
FREE_PAGES = FREE_HOSTS * PAGES
LIMIT_SECONDS = 120

INTRODUCTION = f"""
Head-of-line blocking: fetch {FREE_HOSTS} free hosts × {PAGES} pages {DELAY_MS} ms apart (ideal {(PAGES - 1) * DELAY_MS / 1000} s), without and with {BLOCKED_TASKS:,} tasks
of one blocked host that answers every request with 429 and `Retry-After: 600`; these come first in the list. Goal: the last request to a free
host within 1.05 of the time without the blocked host.

Measured in nginx's log. Time runs from the first request of the run, to any host, to the last one to a free host. Medians of the runs. When
the free hosts are done, or after {LIMIT_SECONDS} s, the contestant is interrupted (SIGINT), because the blocked host would never finish. Without the blocked
host it ends on its own. Comity should send the blocked host about one request.
"""


def run(bench: Bench) -> str:
    """The section for W7."""
    rows = []
    with servers.nginx(bench) as nginx:
        free = list(urls.in_turn(nginx, urls.hosts(FREE_HOSTS), PAGES))
        blocked = [nginx.url(servers.BLOCKED_HOST, page) for page in range(BLOCKED_TASKS)]
        without = urls.write(bench.folder / "without", free)
        with_blocked = urls.write(bench.folder / "with", blocked + free)
        for name, command in contestants(bench):
            if not bench.wants(name):
                continue
            before = bench.repeat(f"{name}, without", lambda: once(bench, nginx, command, without))
            after = bench.repeat(f"{name}, with", lambda: once(bench, nginx, command, with_blocked))
            complete = before["free_least"] == after["free_least"] == FREE_PAGES
            ratio = after["seconds"] / before["seconds"] if complete else None
            goal = None
            if name.startswith("comity"):
                goal = ratio is not None and ratio <= 1.05
            rows.append([name, after["runs"], before["seconds"], after["seconds"], ratio, after["free_least"],
                         after["early_worst"], after["blocked_worst"], after["from_start"], goal])
    return report.section(bench, INTRODUCTION, rows, [
        "contestant", "runs", "without, s", "with, s", "with ÷ without", f"free pages of {FREE_PAGES:,}", "early gaps, free hosts",
        "requests to the blocked host", "with, from process start, s", "goal"])


def contestants(bench: Bench):
    """Name and how to run it on a list of URLs in a folder."""
    delay = {"DOWNLOAD_DELAY": DELAY_MS / 1000, "RANDOMIZE_DOWNLOAD_DELAY": False}
    best = {"CONCURRENT_REQUESTS": 400, "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "COOKIES_ENABLED": False}
    throttled = ["--throttle", "--delay-ms", DELAY_MS, "--memory", "--concurrency", 200]
    return [
        ("comity", lambda file, folder: fetchers.comity(
            bench, folder / "store", "line", file, *fetchers.comity_at(DELAY_MS))),
        ("Scrapy, default", lambda file, _folder: fetchers.scrapy(bench, file, **delay)),
        ("Scrapy, 400 concurrent requests", lambda file, _folder: fetchers.scrapy(bench, file, **delay, **best)),
        ("Crawlee, default (no delay)", lambda file, folder: fetchers.crawlee(bench, file, folder / "storage")),
        ("Crawlee, throttled, in memory, 200 concurrent", lambda file, folder: fetchers.crawlee(
            bench, file, folder / "storage", *throttled)),
    ]


def once(bench: Bench, nginx: servers.Nginx, command, file) -> dict:
    """One contestant on one list, interrupted when the free hosts are done."""
    folder = bench.fresh_folder()
    nginx.forget()
    began = time.time()
    line = command(file, folder)
    child = processes.start(line, processes.CLIENT_CORE, folder / "output", folder)
    while time.time() < began + LIMIT_SECONDS and not processes.has_ended(child):
        if judge.pages(nginx.requests()) == FREE_PAGES:
            time.sleep(0.5)  # Time for a second, unwanted request to be seen.
            break
        time.sleep(0.25)
    ended = processes.end_gently(child, folder / "output", began, limit=10)
    if ended.timed_out:
        say("  did not end within 10 s of SIGINT")
    requests = nginx.requests()
    free = [request for request in requests if request.status == 200]
    if not requests:
        raise processes.CouldNotRun(f"{' '.join(map(str, line))}\nno request arrived:\n{ended.output[-2000:]}")
    last = free[-1].start if free else None
    return {
        "free_least": judge.pages(free),
        "seconds": (last - requests[0].start) / 1e6 if last else None,
        "from_start": last / 1e6 - began if last else None,
        "early_worst": judge.early_gaps(free, DELAY_MS),
        "blocked_worst": len(requests) - len(free),
    }
