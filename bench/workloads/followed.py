"""Stores full of sources and items, and the feeds that those sources are (W11; W15 needs only sources).

Sources and old items are written with SQL, as comity would have left them after months of runs; what a feed itself
names is ingested by comity.
"""

import contextlib
import datetime
import os
import pathlib
import random
import sqlite3

from . import servers, urls

SOURCES, HOSTS, DUE, NEW_A_RUN, KNOWN = 5_000, 500, 200, 1, 20
CADENCE_MINUTES = 480
MONTHS_US = 80 * 86_400 * 1_000_000
"""Old items were scraped over this time: less than the 90 days after which a run clears logs away."""

DUE_SOURCES = sorted(random.Random(11).sample(range(1, SOURCES + 1), DUE))
"""The numbers of those that are due, on whichever hosts they are."""


class Feeds:
    """The feeds of the sources that are due: each version names one item that the version before did not."""

    def __init__(self, nginx: servers.Nginx):
        self._nginx, self._version = nginx, 0
        self._names = urls.hosts(HOSTS)
        self._write()

    def advance(self) -> None:
        """Every feed has one new item, at its top."""
        self._version += NEW_A_RUN
        self._write()

    def host(self, source: int) -> str:
        """Where a source is: neighbours in the list are on different hosts."""
        return self._names[source % HOSTS]

    def url(self, source: int) -> str:
        """The address of a source."""
        return f"http://{self.host(source)}:{self._nginx.port}/feeds/{source}"

    def _write(self) -> None:
        first = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
        # nginx makes the ETag of the size and of whole seconds, and versions follow each other faster than that.
        changed = first.timestamp() + self._version * 60
        for source in DUE_SOURCES:
            root = f"http://{self.host(source)}:{self._nginx.port}"
            items = [_ITEM.format(title=f"Item {number} of source {source}, as long as a headline is", root=root, source=source,
                                  number=number, date=f"{first + datetime.timedelta(hours=number):%a, %d %b %Y %H:%M:%S} GMT")
                     for number in range(self._version + KNOWN, self._version - 1, -1)]
            path = self._nginx.feeds / str(source)
            path.write_text(_FEED.format(source=source, root=root, items="".join(items)))
            os.utime(path, (changed, changed))


class Followed:
    """One store: `SOURCES` sources, and items."""

    def __init__(self, path: pathlib.Path, feeds: Feeds):
        self.path, self._feeds = path, feeds

    def add_sources(self) -> None:
        """All sources, in a store that comity made; those in `DUE_SOURCES` were never fetched, the others just now."""
        now = _now()
        with self._open() as store:
            store.executemany(_SOURCE, (
                (source, self._feeds.url(source), _cadence(CADENCE_MINUTES), "{}" if source in _DUE_SET else _cursor(now), _us(now))
                for source in range(1, SOURCES + 1)))

    def add_items(self, total: int) -> None:
        """Items scraped in the past, of all sources in turn, until there are `total`: each with its task, attempt and log."""
        with self._open() as store:
            count = total - store.execute("SELECT count(*) FROM items").fetchone()[0]
            job = store.execute("SELECT id FROM jobs WHERE name = 'scrape'").fetchone()[0]
            known = {"count": count, "sources": SOURCES, "job": job, "end": _us(_now()), "span": MONTHS_US}
            for table in ("items", "tasks"):
                known[table] = store.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchone()[0]
            names = [(source, self._feeds.host(source)) for source in range(1, SOURCES + 1)]
            store.executemany("INSERT INTO domains (domain) VALUES (?) ON CONFLICT DO NOTHING", {(host,) for _, host in names})
            store.execute("INSERT INTO lanes (job_id, domain_id) SELECT ?, id FROM domains WHERE true ON CONFLICT DO NOTHING",
                          (job,))
            store.execute("CREATE TEMP TABLE places (source_id INTEGER PRIMARY KEY, host TEXT)")
            store.executemany("INSERT INTO places VALUES (?, ?)", names)
            store.execute("CREATE TEMP TABLE old AS " + _OLD, known)
            for statement in _FILL:
                store.execute(statement, known)

    def make_due(self, due: bool) -> None:
        """Those in `DUE_SOURCES` are due, or just fetched; no other is, and no item is left to be scraped."""
        now = _now()
        with self._open() as store:
            store.execute("UPDATE items SET state = 'done' WHERE state = 'none'")
            store.execute("UPDATE sources SET cursor_json = json_set(cursor_json, '$.last_fetch_at', ?)", (_time(now),))
            if due:
                long_ago = _time(now - datetime.timedelta(minutes=2 * CADENCE_MINUTES))
                store.executemany("UPDATE sources SET cursor_json = json_set(cursor_json, '$.last_fetch_at', ?) WHERE id = ?",
                                  ((long_ago, source) for source in DUE_SOURCES))

    def items(self) -> int:
        """How many items it has."""
        with self._open() as store:
            return store.execute("SELECT count(*) FROM items").fetchone()[0]

    def _open(self):
        return _changed(self.path)


def add_fetched_sources(path: pathlib.Path, feeds: list[str], cadence_minutes: int) -> None:
    """Sources that were fetched just now, in a store that comity made (W15)."""
    now = _now()
    with _changed(path) as store:
        store.executemany(_SOURCE, ((number, url, _cadence(cadence_minutes), _cursor(now), _us(now))
                                    for number, url in enumerate(feeds, start=1)))


@contextlib.contextmanager
def _changed(path: pathlib.Path):
    """One transaction; afterwards everything is in the file and nothing in the log beside it."""
    with contextlib.closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA synchronous = OFF")
        store.execute("PRAGMA cache_size = -1000000")
        with store:
            yield store
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _us(moment: datetime.datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def _time(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _cursor(moment: datetime.datetime) -> str:
    return f'{{"last_fetch_at":"{_time(moment)}"}}'


def _cadence(minutes: int) -> str:
    return f'{{"cadence":{{"mode":"interval","every_minutes":{minutes}}}}}'


_DUE_SET = set(DUE_SOURCES)

_SOURCE = """INSERT INTO sources (id, name, kind, url, listed_url, lead, config_json, cursor_json, added_us)
    VALUES (?1, 'source ' || ?1, 'feed', ?2, ?2, 'listed', ?3, ?4, ?5)"""

_FEED = """<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0"><channel><title>Source {source}</title><link>{root}/</link><description>One of many</description>
{items}</channel></rss>
"""

_ITEM = """<item><title>{title}</title><link>{root}/{source}-{number}</link><guid isPermaLink="false">{source}-{number}</guid>
<pubDate>{date}</pubDate><description>A sentence or two about what stands on the page, as feeds have it.</description></item>
"""

_OLD = """
WITH RECURSIVE numbers (nth) AS (SELECT 0 UNION ALL SELECT nth + 1 FROM numbers WHERE nth + 1 < :count)
SELECT nth, :items + nth AS item, :tasks + nth AS task, source_id, lanes.id AS lane,
    'http://' || host || '/old-' || source_id || '-' || nth AS url, :end - :span + (:span / :count) * nth AS at
FROM numbers JOIN places ON source_id = 1 + nth % :sources
JOIN domains ON domain = host JOIN lanes ON lanes.domain_id = domains.id AND lanes.job_id = :job
ORDER BY nth
"""

_FILL = (
    """INSERT INTO items (id, source_id, identity, url, lead, title, published_us, state, content_hash, seen_us, task_id,
        scraped_us, status, bytes)
    SELECT item, source_id, 'guid:' || lower(hex(randomblob(16))), url, 'remote',
        'Item ' || nth || ' of source ' || source_id || ', as long as a headline is', at, 'done', random(), at, task,
        at + 1000000, 200, 1024 FROM old ORDER BY nth""",
    """INSERT INTO tasks (id, job_id, lane_id, url, url_key, lead, state, ready_us, status, bytes, settled_us, item_id,
        source_id, requests, last_us, last_took_us, last_outcome)
    SELECT task, :job, lane, url, random(), 'remote', 'done', at, 200, 1024, at + 1000000, item, source_id, 1, at, 1000,
        (SELECT outcome FROM attempts LIMIT 1) FROM old ORDER BY nth""",
    """INSERT INTO scrape_logs (source_id, item_id, task_id, started_us, ended_us, status, http_status, bytes)
    SELECT source_id, item, task, at, at + 1000000, 'ok', 200, 1024 FROM old ORDER BY nth""",
    "UPDATE jobs SET tasks = tasks + :count, done = done + :count WHERE id = :job",
)
