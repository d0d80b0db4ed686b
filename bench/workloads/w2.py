"""W2 accuracy: one host, 200 ms between requests, by one process and by three that share a store."""

import time

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench

DELAY_MS, PAGES, PROCESSES = 200, 120, 3
LIMIT_SECONDS = 120

INTRODUCTION = f"""
Accuracy: fetch {PAGES} pages of one host {DELAY_MS} ms apart, with one process and with three at once. Goal: no gap shorter than the delay, and a rate of at
least 0.98 of the ideal ({(PAGES - 1) * DELAY_MS / 1000:.1f} s from the first start to the last).

Measured in nginx's log at the start of each request. A gap is early if it is shorter than the delay by more than max(10 ms, 1 %).
Medians of the runs; early gaps and pages are from the worst run. Scrapy can't share a pace between processes.
"""


def run(bench: Bench) -> str:
    """The section for W2."""
    rows = []
    with servers.nginx(bench) as nginx:
        for name, fetch in contestants(bench, nginx):
            if not bench.wants(name):
                continue
            row = bench.repeat(name, lambda: once(bench, nginx, fetch))
            goal = None
            if name.startswith("comity"):
                goal = row["early_worst"] == 0 and row["rate"] >= 0.98 and row["pages_least"] == PAGES
            rows.append([name, row["runs"], row["pages_least"], row["early_worst"], row["shortest_ms_least"], row["rate"],
                         row["process_seconds"], goal])
    return report.section(bench, INTRODUCTION, rows, [
        "contestant", "runs", f"pages of {PAGES}", "early gaps", "shortest gap, ms", "rate ÷ ideal", "whole process, s", "goal"])


def once(bench: Bench, nginx: servers.Nginx, fetch) -> dict:
    """One contestant; `fetch` starts its processes in a folder and returns how long the longest took."""
    nginx.forget()
    process_seconds = fetch(bench.fresh_folder())
    requests = nginx.requests()
    if len(requests) < 2:
        raise processes.CouldNotRun("no request arrived")
    gaps = [after.start - before.start for before, after in zip(requests, requests[1:])]
    return {
        "pages_least": judge.pages(requests),
        "early_worst": judge.early_gaps(requests, DELAY_MS),
        "shortest_ms_least": min(gaps) / 1000,
        "rate": (len(requests) - 1) * DELAY_MS / 1000 / judge.span_seconds(requests),
        "process_seconds": process_seconds,
    }


def contestants(bench: Bench, nginx: servers.Nginx):
    """Name and how to fetch all pages in a folder."""
    pages = [nginx.url("127.0.0.1", page) for page in range(PAGES)]
    scrapy = {"DOWNLOAD_DELAY": DELAY_MS / 1000, "RANDOMIZE_DOWNLOAD_DELAY": False}

    def split(count: int, command):
        """`count` processes at once, each with its share of the pages."""
        def fetch(folder):
            folders = [folder / str(number) for number in range(count)]
            for one in folders:
                one.mkdir()
            files = [urls.write(one / "urls", pages[number::count]) for number, one in enumerate(folders)]
            commands = [command(file, folder, number) for number, file in enumerate(files)]
            ended = processes.run_together(commands, folders, LIMIT_SECONDS, fetchers.accepted(commands[0]))
            return max(one.seconds for one in ended)
        return fetch

    def ours(file, folder, number):
        return fetchers.comity(bench, folder / "store", f"job-{number}", file, *fetchers.comity_at(DELAY_MS))

    def pyrate(buffer_ms):
        return lambda file, folder, _number: fetchers.pyrate(bench, file, folder / "bucket", DELAY_MS, buffer_ms)

    return [
        ("comity, 1 process", split(1, ours)),
        ("comity, 3 processes, 3 jobs, one store", split(PROCESSES, ours)),
        ("comity, 3 processes joined to one job", lambda folder: joined(bench, nginx, folder, pages)),
        ("Scrapy, 1 process", split(1, lambda file, *_: fetchers.scrapy(bench, file, **scrapy))),
        ("Scrapy, 3 processes", split(PROCESSES, lambda file, *_: fetchers.scrapy(bench, file, **scrapy))),
        ("pyrate-limiter on SQLite, default, 1 process", split(1, pyrate(50))),
        ("pyrate-limiter on SQLite, no buffer, 1 process", split(1, pyrate(0))),
        ("pyrate-limiter on SQLite, default, 3 processes", split(PROCESSES, pyrate(50))),
        ("pyrate-limiter on SQLite, no buffer, 3 processes", split(PROCESSES, pyrate(0))),
    ]


def joined(bench: Bench, nginx: servers.Nginx, folder, pages: list[str]) -> float:
    """One process brings the job; two more join it once its first request has arrived."""
    folders = [folder / str(number) for number in range(PROCESSES)]
    for one in folders:
        one.mkdir()
    file = urls.write(folder / "urls", pages)
    commands = [fetchers.comity(bench, folder / "store", "job", file if number == 0 else None, *fetchers.comity_at(DELAY_MS))
                for number in range(PROCESSES)]
    began = time.time()
    children = []
    for command, one in zip(commands, folders):
        children.append(processes.start(command, processes.CLIENT_CORE, one / "output", one))
        while not nginx.requests() and time.time() < began + 10 and not processes.has_ended(children[0]):
            time.sleep(0.02)
    ended = [processes.wait(child, one / "output", began, LIMIT_SECONDS) for child, one in zip(children, folders)]
    for command, one in zip(commands, ended):
        processes.check(command, one, fetchers.accepted(command))
    return max(one.seconds for one in ended)
