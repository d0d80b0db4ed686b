"""W11 sources: many sources of which few are due, in a store with few items and in one with many."""

import itertools
import json
import pathlib
import sys

from . import followed, processes, report, servers
from .bench import Bench, say

SMALL, LARGE = 10_000, 1_000_000
LIMIT_SECONDS = 120
MEASURED = pathlib.Path(__file__).parent / "measured.py"

CONFIGURATION = """
robots = "ignore"

[default]
min_delay = "0s"
in_flight = "unlimited"
learning = "off"

[scrape]
min_interval = 0
format = "none"

[http]
contact = "bench@example.com"
allow_private = ["127.0.0.0/8"]
"""

INTRODUCTION = f"""
Sources: {followed.SOURCES:,} sources on {followed.HOSTS} hosts, {followed.DUE} of them due, in a store with {SMALL:,} items and in one with {LARGE:,}. Goal:
if nothing is due, the whole process takes less than a second; memory stays flat (at most 1.5 times);
with {LARGE:,} items, a run takes at most 1.5 times as long, and as much CPU, as with {SMALL:,}.

`comity run`, robots.txt ignored, no delays. A feed that is due lists {followed.KNOWN} known items and {followed.NEW_A_RUN} new one. Old items were scraped:
each has its task, attempt and scrape log in the store. The stores take turns, in alternating order. nginx's log proves that each feed and
page was requested once, and shows when the last response was sent, measured from the start of the process. That time is compared, so that it doesn't
include what the process does after its last response. Medians of the runs; memory is the peak of the process.
"""

VARIANTS = (
    ("nothing due", False, []),
    (f"{followed.DUE} due, not scraping", True, ["--no-scrape"]),
    (f"{followed.DUE} due, scraping {followed.DUE} new items", True, []),
)
"""Name, whether sources are due, options of `comity run`."""

WHATS = ("whole", "answered", "cpu", "mb")
COLUMNS = ["run", "runs", "whole process, 10 k, s", "whole process, 1 M, s", "last answer, 10 k, s", "last answer, 1 M, s", "÷",
           "CPU, 10 k, ms", "CPU, 1 M, ms", "÷", "memory, 10 k, MB", "memory, 1 M, MB", "÷", "goal"]


def run(bench: Bench) -> str:
    """The section for W11."""
    with servers.nginx(bench) as nginx:
        feeds = followed.Feeds(nginx)
        configuration = bench.folder / "comity.toml"
        configuration.write_text(CONFIGURATION)
        stores = {items: prepared(bench, feeds, configuration, items) for items in (SMALL, LARGE)}
        order = itertools.cycle([(SMALL, LARGE), (LARGE, SMALL)])
        found = [bench.repeat(name, lambda: both(bench, nginx, feeds, configuration, stores, next(order), due, options))
                 for name, due, options in VARIANTS if bench.wants(name)]
    return report.section(bench, INTRODUCTION, [cells(row) for row in found], COLUMNS, peers=())


def cells(row: dict) -> list:
    """A row of the table."""
    few, many = ({what: row[f"{what} {items}"] for what in WHATS} for items in (SMALL, LARGE))
    ratios = {what: many[what] / few[what] if few[what] else None for what in WHATS}
    goal = all(ratio <= 1.5 for what, ratio in ratios.items() if what != "whole" and ratio)
    if row["name"] == VARIANTS[0][0]:
        goal = goal and many["whole"] < 1
    shown = [value for what in WHATS[1:] for value in (few[what], many[what], ratios[what])]
    return [row["name"], row["runs"], few["whole"], many["whole"], *shown, goal]


def prepared(bench: Bench, feeds: followed.Feeds, configuration: pathlib.Path, items: int) -> followed.Followed:
    """A store with so many items, in which every item that a feed names is known."""
    say(f"preparing a store with {items:,} items")
    folder = bench.fresh_folder()
    store = followed.Followed(folder / "store", feeds)
    # Without sources, it only makes the store.
    processes.run(comity(bench, store, configuration, "run"), folder, LIMIT_SECONDS)
    store.add_sources()
    processes.run(comity(bench, store, configuration, "run"), folder, LIMIT_SECONDS)
    store.add_items(items)
    if store.items() != items:
        raise processes.CouldNotRun(f"{store.path}: has {store.items()} items instead of {items}")
    say(f"  {store.path.stat().st_size / 1e6:.0f} MB")
    return store


def comity(bench: Bench, store: followed.Followed, configuration: pathlib.Path, *words: str) -> list:
    """Ours on one store."""
    return [bench.binaries / "comity", *words, "--json", "--quiet", "--store", f"sqlite:{store.path}", "--config", configuration]


def both(bench, nginx, feeds, configuration, stores, order, due: bool, options: list[str]) -> dict:
    """One run on each store, of the same feeds."""
    if due:
        feeds.advance()
    row = {}
    for items in order:
        row |= {f"{what} {items}": value
                for what, value in once(bench, nginx, configuration, stores[items], due, options).items()}
    return row


def once(bench, nginx, configuration, store: followed.Followed, due: bool, options: list[str]) -> dict:
    """One run on one store."""
    store.make_due(due)
    folder = bench.fresh_folder()
    nginx.forget()
    command = [sys.executable, "-I", "-S", MEASURED, folder / "cost", *comity(bench, store, configuration, "run", *options)]
    ended = processes.run(command, folder, LIMIT_SECONDS)
    requests = nginx.requests()
    check(json.loads(ended.output), requests, due, scraping=due and not options)
    began, seconds, cpu, kib = map(float, (folder / "cost").read_text().split())
    answered = max(request.done for request in requests) / 1e6 - began if due else None
    return {"whole": seconds, "answered": answered, "cpu": cpu * 1000, "mb": kib * 1024 / 1e6}


def check(told: dict, requests: list, due: bool, scraping: bool) -> None:
    """The run did what it was to do, by its own word and by the server's."""
    count = followed.DUE if due else 0
    sources, items = told["sources"], told["items"]
    pages = {request.path for request in requests if request.status == 200}
    did = {"due": sources["due"], "fetched": sources["fetched"], "not due": sources["not_due"], "new": items["new"],
           "changed": items["changed"], "scraped": told["tasks"]["fetched"],
           "requests": len(requests), "pages": len(pages)}
    scraped = count if scraping else 0
    wanted = {"due": count, "fetched": count, "not due": followed.SOURCES - count, "new": count, "changed": 0,
              "scraped": scraped, "requests": count + scraped, "pages": count + scraped}
    if did != wanted:
        raise processes.CouldNotRun(f"the run did {did} instead of {wanted}")
