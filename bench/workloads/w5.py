"""W5 raw: no delay at all, concurrency 64; what bookkeeping costs against a loop that keeps none."""

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench

HOSTS, PAGES_A_HOST, CONCURRENCY = 50, 4000, 64
PAGES_SCRAPY, PAGES_CRAWLEE = 10_000, 2_000
LIMIT_SECONDS = 300

CONFIGURATION = """
[default]
min_delay = "0s"
in_flight = "unlimited"
learning = "off"
"""

INTRODUCTION = f"""
Raw speed: fetch {HOSTS} hosts × {PAGES_A_HOST:,} pages with no delay, `in_flight` unlimited, concurrency {CONCURRENCY}, and every result saved in the store. Goal: at
least 0.5 of the pages per second of a bare reqwest loop, and at least 20 × Scrapy's (the faster of the two).

Measured in nginx's log: pages ÷ time from the first start to the last. The whole process also includes its start and, for Comity, filling the
queue. Medians of the runs. Scrapy and Crawlee are slower, so they get fewer pages ({PAGES_SCRAPY:,} and {PAGES_CRAWLEE:,}) of
the same hosts. Each contestant has one core, nginx the other.
"""


def run(bench: Bench) -> str:
    """The section for W5."""
    with servers.nginx(bench) as nginx:
        found = [bench.repeat(name, lambda: once(bench, nginx, command, pages))
                 for name, pages, command in contestants(bench, nginx) if bench.wants(name)]
    rates = {row["name"]: row for row in found}
    bare = rates.get("bare reqwest loop")
    scrapy = max((row["rate"] for row in found if row["name"].startswith("Scrapy")), default=None)
    rows = []
    for row in found:
        to_bare = bare and row["rate"] / bare["rate"]
        to_bare_whole = bare and row["whole_rate"] / bare["whole_rate"]
        to_scrapy = scrapy and row["rate"] / scrapy
        goal = None
        if row["name"] == "comity":
            goal = bool(row["missing_worst"] == 0 and to_bare and to_bare >= 0.5 and to_scrapy and to_scrapy >= 20)
        rows.append([row["name"], row["runs"], row["pages_least"], row["missing_worst"], row["rate"], row["whole_rate"],
                     to_bare, to_bare_whole, to_scrapy, row["cpu_seconds"], row["cpu_us"], goal])
    return report.section(bench, INTRODUCTION, rows, [
        "contestant", "runs", "pages", "missing", "pages/s", "pages/s, whole process", "÷ bare", "÷ bare, whole process",
        "÷ Scrapy", "CPU, s", "CPU per page, µs", "goal"])


def contestants(bench: Bench, nginx: servers.Nginx):
    """Name, pages, how to run it in a folder."""
    def pages(count: int):
        names = urls.hosts(HOSTS)
        return count, urls.write(bench.folder / f"urls-{count}", urls.in_turn(nginx, names, count // HOSTS))

    total, all_pages = pages(HOSTS * PAGES_A_HOST)
    scrapy_total, scrapy_pages = pages(PAGES_SCRAPY)
    crawlee_total, crawlee_pages = pages(PAGES_CRAWLEE)
    configuration = bench.folder / "comity.toml"
    configuration.write_text(CONFIGURATION)
    best = {"CONCURRENT_REQUESTS": CONCURRENCY, "COOKIES_ENABLED": False,
            "RETRY_ENABLED": False, "REDIRECT_ENABLED": False, "HTTPCOMPRESSION_ENABLED": False, "TELNETCONSOLE_ENABLED": False,
            "DOWNLOADER_STATS": False, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
    return [
        ("bare reqwest loop", total, lambda _folder: fetchers.bare(bench, all_pages, CONCURRENCY)),
        ("comity", total, lambda folder: fetchers.comity(
            bench, folder / "store", "raw", all_pages, "--config", configuration, *fetchers.BEST,
            "--concurrency", CONCURRENCY)),
        ("Scrapy, default", scrapy_total, lambda _folder: fetchers.scrapy(bench, scrapy_pages)),
        ("Scrapy, best", scrapy_total, lambda _folder: fetchers.scrapy(bench, scrapy_pages, **best)),
        ("Crawlee, default", crawlee_total, lambda folder: fetchers.crawlee(bench, crawlee_pages, folder / "storage")),
        ("Crawlee, best", crawlee_total, lambda folder: fetchers.crawlee(
            bench, crawlee_pages, folder / "storage", "--memory", "--concurrency", CONCURRENCY)),
    ]


def once(bench: Bench, nginx: servers.Nginx, command, pages: int) -> dict:
    """One contestant, all pages once."""
    folder = bench.fresh_folder()
    nginx.forget()
    line = command(folder)
    ended = processes.run(line, folder, LIMIT_SECONDS, fetchers.accepted(line))
    requests = nginx.requests()
    served = judge.pages(requests)
    if served < 2:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno page was fetched")
    return {
        "pages_least": served,
        "missing_worst": pages - served,
        "rate": served / judge.span_seconds(requests),
        "whole_rate": served / ended.seconds,
        "cpu_seconds": ended.cpu_seconds,
        "cpu_us": ended.cpu_seconds * 1e6 / served,
    }
