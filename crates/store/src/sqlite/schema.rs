//! The tables, and the migrations from older versions.
//!
//! Times are microseconds since 1970 in UTC; `datetime(ready_us / 1000000, 'unixepoch')` shows them.

use rusqlite::{Connection, TransactionBehavior};

use super::location::Location;
use crate::StoreError;

/// Migrates the database to the newest schema; refuses one written by a newer version.
pub(super) fn migrate(connection: &mut Connection, location: &Location) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    // Checked without a lock first, because there is almost never anything to do.
    if version(connection).map_err(|error| location.error(&error))? == known {
        return Ok(());
    }
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| location.error(&error))?;
    let found = version(&transaction).map_err(|error| location.error(&error))?;
    if found > known {
        return Err(StoreError::Newer { location: location.to_string(), found, known });
    }
    let run = || -> rusqlite::Result<()> {
        for migration in &MIGRATIONS[found.max(0) as usize..] {
            transaction.execute_batch(migration)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", known)?;
        transaction.commit()
    };
    run().map_err(|error| location.error(&error))
}

/// Refuses a database of another program, before anything is changed in it.
pub(super) fn recognize(connection: &Connection, location: &Location) -> Result<(), StoreError> {
    let read = || -> rusqlite::Result<bool> {
        // One statement, so that it sees one state even if the database is being created right now.
        let sql = "SELECT (SELECT count(*) FROM sqlite_schema), application_id FROM pragma_application_id";
        let (tables, application): (i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(tables == 0 || application == APPLICATION)
    };
    match read() {
        Ok(true) => Ok(()),
        Ok(false) => Err(location.unavailable("is a database of another program; use another --store")),
        Err(error) => Err(location.error(&error)),
    }
}

/// SQLite's application id, which marks the file as ours: `CMTY`.
const APPLICATION: i64 = 0x434d_5459;

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// The migrations, one per version. A released one is never changed.
const MIGRATIONS: [&str; 21] = [
    JOBS,
    SOURCES,
    SHARED,
    WIKIS,
    STATUS,
    IDENTITY,
    SNAPSHOTS,
    TIMELINE,
    LEASES,
    RESULTS,
    DETAILS,
    RETENTION,
    SHARING,
    HOOKS,
    REQUESTS,
    ATTEMPTS,
    USED_IDS,
    ROW_MARKS,
    CHANGED,
    CRAWL_DELAYS,
    ACTIVITY,
];

/// What happens on domains, and who changed what, for people; which sources are asked for; failures by what they have in
/// common.
const ACTIVITY: &str = "
-- How each domain is doing, as its holder reported it a while ago; lists are sorted by it.
CREATE TABLE activity (
    domain_id INTEGER PRIMARY KEY,
    -- Null if only its tasks were counted.
    reported_us INTEGER,
    delay_ms INTEGER NOT NULL DEFAULT 0,
    learned_ms INTEGER NOT NULL DEFAULT 0,
    -- 0 means never.
    held_until_us INTEGER NOT NULL DEFAULT 0,
    bound_by TEXT,
    success_streak INTEGER NOT NULL DEFAULT 0,
    error_streak INTEGER NOT NULL DEFAULT 0,
    last_us INTEGER NOT NULL DEFAULT 0,
    last_outcome TEXT,
    last_status INTEGER,
    waiting INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX activity_delay ON activity (delay_ms);
CREATE INDEX activity_learned ON activity (learned_ms);
CREATE INDEX activity_held ON activity (held_until_us);
CREATE INDEX activity_last ON activity (last_us);
CREATE INDEX activity_waiting ON activity (waiting);
INSERT INTO activity (domain_id, learned_ms)
    SELECT id, round(adaptive_delay_seconds * 1000) FROM domains WHERE adaptive_delay_seconds > 0;

-- What happened on each domain during the last day, packed.
CREATE TABLE history (
    domain_id INTEGER PRIMARY KEY,
    until_us INTEGER NOT NULL,
    samples BLOB NOT NULL
) STRICT;
CREATE INDEX history_until ON history (until_us);
CREATE TRIGGER activity_follows_domains AFTER DELETE ON domains
BEGIN
    DELETE FROM activity WHERE domain_id = OLD.id;
    DELETE FROM history WHERE domain_id = OLD.id;
END;

-- The outcomes of all requests, in intervals of ten seconds.
CREATE TABLE traffic (
    from_us INTEGER PRIMARY KEY,
    success INTEGER NOT NULL,
    answered INTEGER NOT NULL,
    rate_limited INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    unavailable INTEGER NOT NULL,
    server_error INTEGER NOT NULL,
    timeout INTEGER NOT NULL,
    network_error INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_us INTEGER NOT NULL,
    who TEXT NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    impact TEXT NOT NULL,
    result TEXT NOT NULL
) STRICT;

-- Somebody asked to fetch it as soon as possible.
ALTER TABLE sources ADD COLUMN requested_us INTEGER;

CREATE INDEX tasks_failed ON tasks (job_id, coalesce(CAST(status AS TEXT), last_outcome, ''), settled_us)
    WHERE state = 'failed';
CREATE INDEX jobs_state ON jobs (state);
";

/// The delay that each robots.txt file asks for: a long one keeps the file, and what is known about its domain.
const CRAWL_DELAYS: &str = "
ALTER TABLE robots ADD COLUMN crawl_delay_us INTEGER NOT NULL DEFAULT 0;
CREATE INDEX robots_delay ON robots (crawl_delay_us) WHERE crawl_delay_us > 0;
";

/// Whether a page is another one than when it was last fetched.
const CHANGED: &str = "
-- 1 if it is new or its body differs from the one before, 0 if it is the same; null if it is not known.
ALTER TABLE tasks ADD COLUMN changed INTEGER;
";

/// Where in the index the rows of a worker may be that it has not confirmed.
const ROW_MARKS: &str = "
-- The size of the index of rows at told_us, in bytes: rows of what was settled later come after it.
ALTER TABLE workers ADD COLUMN index_bytes INTEGER;
";

/// Counters and secrets that all processes share.
const SHARED: &str = "
CREATE TABLE counts (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Status reports of holders.
const STATUS: &str = "
ALTER TABLE holders ADD COLUMN status TEXT;
ALTER TABLE holders ADD COLUMN told_us INTEGER;
";

/// The identity of the store, to notice a different one in its place; why a job gave up on a domain.
const IDENTITY: &str = "
CREATE TABLE identity (
    id BLOB NOT NULL,
    -- Which file it is in: a copy that was put back is in another one.
    file TEXT,
    -- Since when it is a copy; 0 until somebody who knows the time uses it.
    restored_us INTEGER,
    -- How often domains were forgotten: whoever remembers their numbers looks again.
    forgotten INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO identity (id) VALUES (randomblob(16));

-- Which file proves, by its lock, that a holder lives.
ALTER TABLE holders ADD COLUMN proof TEXT;

ALTER TABLE lanes ADD COLUMN given_up TEXT;
";

/// Domains published by holders, and requests to see others; epochs for claims of sources and wikis; a stamp per
/// transaction, to look up a commit whose answer was lost.
const SNAPSHOTS: &str = "
ALTER TABLE holders ADD COLUMN sights TEXT;

-- A domain that somebody wishes to see, and what its holder answered.
CREATE TABLE looks (
    domain_id INTEGER PRIMARY KEY,
    wished_us INTEGER NOT NULL,
    epoch INTEGER,
    sight TEXT,
    seen_us INTEGER
) STRICT;

ALTER TABLE sources ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE wikis ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;

ALTER TABLE identity ADD COLUMN commits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE identity ADD COLUMN stamp INTEGER NOT NULL DEFAULT 0;
";

/// The store's time: one row, or none before anybody asked.
const TIMELINE: &str = "
CREATE TABLE timeline (
    -- Which boot of which machine it was set in.
    boot TEXT NOT NULL,
    -- When that machine booted, on this timeline.
    booted_us INTEGER NOT NULL,
    -- The latest moment that anybody is known to have read on it, and what the wall clock read then.
    last_us INTEGER NOT NULL,
    wall_us INTEGER NOT NULL
) STRICT;
-- Before, everybody went by a wall clock: it read at least this.
INSERT INTO timeline SELECT 'before', 0, last_us, last_us FROM (SELECT max(
    (SELECT coalesce(max(until_us) - 10000000, 0) FROM holders),
    (SELECT coalesce(max(released_us), 0) FROM domains),
    (SELECT coalesce(max(started_us), 0) FROM scrape_logs)) AS last_us) WHERE last_us > 0;
";

/// Lent permits, so that a domain gets no more requests than its rule allows after a crash; failures that did not use
/// up a retry.
const LEASES: &str = "
CREATE TABLE permits (
    domain_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    intent TEXT NOT NULL,
    granted_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (domain_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX permits_until ON permits (until_us);

ALTER TABLE tasks ADD COLUMN forgiven INTEGER NOT NULL DEFAULT 0;
";

/// Results of tasks as people get them; who works on jobs; which tasks wait again.
const RESULTS: &str = "
-- How many requests were sent since it was added, retried or refreshed, and the last of them. Named otherwise than in
-- attempts: people join the two.
ALTER TABLE tasks ADD COLUMN requests INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN last_us INTEGER;
ALTER TABLE tasks ADD COLUMN last_took_us INTEGER;
ALTER TABLE tasks ADD COLUMN last_outcome TEXT;
-- When its answer came, and where redirects led, if they did.
ALTER TABLE tasks ADD COLUMN fetched_us INTEGER;
ALTER TABLE tasks ADD COLUMN final_url TEXT;
-- The page as it was last fetched; stays while it is fetched again.
ALTER TABLE tasks ADD COLUMN content_type TEXT;
ALTER TABLE tasks ADD COLUMN sha256 BLOB;
ALTER TABLE tasks ADD COLUMN file TEXT;
ALTER TABLE tasks ADD COLUMN etag BLOB;
ALTER TABLE tasks ADD COLUMN last_modified BLOB;
UPDATE tasks SET last_outcome = (SELECT outcome FROM attempts WHERE task_id = tasks.id ORDER BY started_us DESC LIMIT 1)
    WHERE state = 'failed' AND state IN ('failed', 'skipped');

-- Which tasks wait again, while a job that was reopened is not swept; as JSON.
ALTER TABLE jobs ADD COLUMN revival TEXT;
-- The highest number of a job that was removed: it is not given out again.
ALTER TABLE identity ADD COLUMN removed_job INTEGER NOT NULL DEFAULT 0;

-- Who works on a job. The rows of what it settled before told_us are written.
CREATE TABLE workers (
    job_id INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    told_us INTEGER NOT NULL,
    PRIMARY KEY (job_id, holder)
) STRICT, WITHOUT ROWID;
";

/// What sources say about items, apart from the items so that listing them stays fast.
const DETAILS: &str = "
CREATE TABLE item_details (
    item_id INTEGER PRIMARY KEY,
    -- Of everything that follows.
    hash INTEGER NOT NULL,
    summary TEXT,
    summary_html INTEGER NOT NULL,
    content TEXT,
    content_html INTEGER NOT NULL,
    author TEXT,
    -- Lists in JSON.
    categories TEXT NOT NULL,
    enclosures TEXT NOT NULL,
    truncated TEXT NOT NULL
) STRICT;
-- The items of one source, in the order they were seen.
CREATE INDEX items_source ON items (source_id, id);
CREATE TRIGGER details_follow_items AFTER DELETE ON items
BEGIN
    DELETE FROM item_details WHERE item_id = OLD.id;
END;
";

/// Items of several sources that point to the same page share one task.
const SHARING: &str = "
-- What the page is told apart by, whoever names it.
ALTER TABLE items ADD COLUMN page_key BLOB;
-- The item whose scrape brought the page, where that is another one.
ALTER TABLE items ADD COLUMN scraped_as INTEGER;
CREATE INDEX items_page ON items (page_key) WHERE page_key IS NOT NULL;

-- Items that a task scrapes beside its own.
CREATE TABLE sharers (
    task_id INTEGER NOT NULL,
    item_id INTEGER NOT NULL,
    PRIMARY KEY (task_id, item_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX sharers_item ON sharers (item_id);
CREATE TRIGGER sharers_follow_tasks AFTER DELETE ON tasks WHEN OLD.item_id IS NOT NULL
BEGIN
    DELETE FROM sharers WHERE task_id = OLD.id;
END;
CREATE TRIGGER sharers_follow_items AFTER DELETE ON items
BEGIN
    DELETE FROM sharers WHERE item_id = OLD.id;
END;

-- As before, for all items that a task scrapes.
DROP TRIGGER items_follow_tasks;
CREATE TRIGGER items_follow_tasks AFTER UPDATE OF state ON tasks
WHEN NEW.item_id IS NOT NULL AND NEW.state <> OLD.state
BEGIN
    UPDATE items SET wake_us = NULL, error = iif(NEW.state = 'waiting', NULL, NEW.error), state = CASE NEW.state
        WHEN 'waiting' THEN 'waiting'
        WHEN 'done' THEN iif(coalesce(NEW.bytes, 0) = 0, 'partial', 'done')
        ELSE 'failed' END
    WHERE id IN (SELECT NEW.item_id UNION ALL SELECT item_id FROM sharers WHERE task_id = NEW.id)
        AND task_id = NEW.id;
    UPDATE scrape_logs SET ended_us = NEW.settled_us, status = 'interrupted'
    WHERE task_id = NEW.id AND ended_us IS NULL AND NEW.state = 'skipped' AND NEW.error = 'the job ended';
END;
";

/// Items whose hooks have not run yet.
const HOOKS: &str = "
CREATE TABLE hooks (
    item_id INTEGER PRIMARY KEY,
    -- Who runs it.
    holder INTEGER
) STRICT;
CREATE TRIGGER hooks_follow_items AFTER DELETE ON items
BEGIN
    DELETE FROM hooks WHERE item_id = OLD.id;
END;
";

/// Which jobs lost their tasks because they are old.
const RETENTION: &str = "
-- The end after which they went: a job that was reopened since and ended again is looked at again.
ALTER TABLE jobs ADD COLUMN pruned_us INTEGER;
";

/// Origins that the operator listed in a job; method, body and headers of tasks.
const REQUESTS: &str = "
CREATE TABLE origins (
    job_id INTEGER NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (job_id, origin)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO origins SELECT job_id, scheme || substr(authority, instr(authority, '@') + 1) FROM (
    SELECT job_id, substr(url, 1, after) AS scheme, substr(rest, 1, instr(rest || '/', '/') - 1) AS authority FROM (
        SELECT job_id, url, instr(url, '://') + 2 AS after, substr(url, instr(url, '://') + 3) AS rest
        FROM tasks WHERE lead = 'listed'));
CREATE TRIGGER origins_follow_jobs AFTER DELETE ON jobs BEGIN
    DELETE FROM origins WHERE job_id = OLD.id;
END;

ALTER TABLE tasks ADD COLUMN method TEXT;
ALTER TABLE tasks ADD COLUMN body BLOB;
ALTER TABLE tasks ADD COLUMN headers TEXT;
-- A redirect made it a plain GET.
ALTER TABLE tasks ADD COLUMN bodiless INTEGER NOT NULL DEFAULT 0;
";

/// Requests: the only one of a task is in the task's own row, which is written anyway. `attempts` shows them all.
const ATTEMPTS: &str = "
ALTER TABLE attempts RENAME TO logged_attempts;
CREATE VIEW attempts AS
    SELECT task_id, started_us, took_us, outcome, status FROM logged_attempts
    UNION ALL
    SELECT id, last_us, last_took_us, last_outcome, status FROM tasks
    WHERE requests = 1 AND last_us IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM logged_attempts WHERE task_id = tasks.id AND started_us = tasks.last_us);
";

/// The highest ids that deleted rows may have had. They are not given out again: processes remember ids.
const USED_IDS: &str = "
ALTER TABLE identity ADD COLUMN used_task INTEGER NOT NULL DEFAULT 0;
ALTER TABLE identity ADD COLUMN used_lane INTEGER NOT NULL DEFAULT 0;
ALTER TABLE identity ADD COLUMN used_domain INTEGER NOT NULL DEFAULT 0;
";

/// Domains, jobs and tasks.
const JOBS: &str = "
CREATE TABLE holders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    since_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    died_us INTEGER
) STRICT;

CREATE TABLE domains (
    id INTEGER PRIMARY KEY,
    domain TEXT NOT NULL UNIQUE,
    adaptive_delay_seconds REAL NOT NULL DEFAULT 0,
    adaptive_delay_floor_seconds REAL NOT NULL DEFAULT 0,
    floor_confirmed_us INTEGER,
    server_until_us INTEGER,
    server_stated_us INTEGER,
    pinned INTEGER NOT NULL DEFAULT 0,
    paused_until_us INTEGER,
    holder INTEGER REFERENCES holders (id),
    epoch INTEGER NOT NULL DEFAULT 0,
    wanted_by INTEGER,
    released_us INTEGER,
    left_as TEXT NOT NULL DEFAULT 'new',
    pace BLOB
) STRICT;
CREATE INDEX domains_held ON domains (holder) WHERE holder IS NOT NULL;
CREATE INDEX domains_wanted ON domains (holder) WHERE wanted_by IS NOT NULL;

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    options TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    ended_us INTEGER,
    message TEXT,
    unread INTEGER NOT NULL DEFAULT 0,
    swept INTEGER NOT NULL DEFAULT 1,
    tasks INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    rate_limited INTEGER NOT NULL DEFAULT 0,
    retries INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE fillers (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    holder INTEGER NOT NULL,
    PRIMARY KEY (job_id, holder)
) STRICT, WITHOUT ROWID;

CREATE TABLE lanes (
    id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    domain_id INTEGER NOT NULL REFERENCES domains (id),
    due_us INTEGER,
    holder INTEGER,
    UNIQUE (job_id, domain_id)
) STRICT;
CREATE INDEX lanes_due ON lanes (job_id, due_us) WHERE holder IS NULL AND due_us IS NOT NULL;
CREATE INDEX lanes_served ON lanes (holder) WHERE holder IS NOT NULL;
CREATE INDEX lanes_domain ON lanes (domain_id);

CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL,
    lane_id INTEGER NOT NULL,
    home_lane_id INTEGER,
    url TEXT NOT NULL,
    url_key INTEGER NOT NULL,
    lead TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    ready_us INTEGER NOT NULL,
    retries INTEGER NOT NULL DEFAULT 0,
    hops INTEGER NOT NULL DEFAULT 0,
    at_url TEXT,
    status INTEGER,
    bytes INTEGER,
    error TEXT,
    settled_us INTEGER
) STRICT;
CREATE UNIQUE INDEX tasks_key ON tasks (job_id, url_key);
CREATE INDEX tasks_waiting ON tasks (lane_id, ready_us, id) WHERE state = 'waiting';
CREATE INDEX tasks_trouble ON tasks (job_id, state, settled_us) WHERE state IN ('failed', 'skipped');

CREATE TABLE attempts (
    task_id INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    took_us INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    status INTEGER,
    PRIMARY KEY (task_id, started_us)
) STRICT, WITHOUT ROWID;

CREATE TABLE robots (
    origin TEXT PRIMARY KEY,
    fetched_us INTEGER NOT NULL,
    status INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Sources and items.
const SOURCES: &str = "
CREATE TABLE sources (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    url TEXT NOT NULL UNIQUE,
    listed_url TEXT NOT NULL,
    lead TEXT NOT NULL,
    enabled INTEGER NOT NULL DEFAULT 1,
    scraping INTEGER NOT NULL DEFAULT 1,
    auto_scrape INTEGER NOT NULL DEFAULT 1,
    min_scrape_interval REAL,
    config_json TEXT NOT NULL DEFAULT '{}',
    cursor_json TEXT NOT NULL DEFAULT '{}',
    added_us INTEGER NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    retry_us INTEGER,
    error TEXT,
    asked_by INTEGER
) STRICT;

CREATE TABLE items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source_id INTEGER NOT NULL,
    identity TEXT NOT NULL,
    url TEXT NOT NULL,
    lead TEXT NOT NULL,
    title TEXT,
    published_us INTEGER,
    state TEXT NOT NULL DEFAULT 'none',
    content_hash INTEGER NOT NULL,
    seen_us INTEGER NOT NULL,
    changed_us INTEGER,
    task_id INTEGER,
    wake_us INTEGER,
    scraped_us INTEGER,
    status INTEGER,
    bytes INTEGER,
    content_type TEXT,
    file TEXT,
    error TEXT
) STRICT;
CREATE UNIQUE INDEX items_identity ON items (source_id, identity);
CREATE INDEX items_unscraped ON items (source_id, id) WHERE state = 'none';
CREATE INDEX items_unscraped_all ON items (id) WHERE state = 'none';
CREATE INDEX items_failed ON items (source_id, task_id) WHERE state = 'failed';
CREATE INDEX items_failed_all ON items (task_id) WHERE state = 'failed';
CREATE INDEX items_in_flight ON items (source_id, wake_us) WHERE state IN ('waiting', 'running');

CREATE TABLE fetch_runs (
    id INTEGER PRIMARY KEY,
    source_id INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    ended_us INTEGER NOT NULL,
    status TEXT NOT NULL,
    window_end_us INTEGER NOT NULL,
    cursor_in TEXT NOT NULL,
    cursor_out TEXT NOT NULL,
    http_status INTEGER,
    found INTEGER NOT NULL,
    new INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    error TEXT,
    until_us INTEGER
) STRICT;
CREATE INDEX fetch_runs_source ON fetch_runs (source_id, id);

CREATE TABLE scrape_logs (
    id INTEGER PRIMARY KEY,
    source_id INTEGER NOT NULL,
    item_id INTEGER NOT NULL,
    task_id INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    ended_us INTEGER,
    status TEXT NOT NULL DEFAULT 'running',
    http_status INTEGER,
    bytes INTEGER,
    error TEXT
) STRICT;
CREATE INDEX scrape_logs_last ON scrape_logs (source_id, started_us);
CREATE INDEX scrape_logs_item ON scrape_logs (item_id, id);
CREATE INDEX scrape_logs_open ON scrape_logs (task_id) WHERE ended_us IS NULL;

ALTER TABLE tasks ADD COLUMN item_id INTEGER;
ALTER TABLE tasks ADD COLUMN source_id INTEGER;

-- Whatever ends or revives a task (a settle, the end of its job, a retry), its item follows.
CREATE TRIGGER items_follow_tasks AFTER UPDATE OF state ON tasks
WHEN NEW.item_id IS NOT NULL AND NEW.state <> OLD.state
BEGIN
    UPDATE items SET wake_us = NULL, error = iif(NEW.state = 'waiting', NULL, NEW.error), state = CASE NEW.state
        WHEN 'waiting' THEN 'waiting'
        WHEN 'done' THEN iif(coalesce(NEW.bytes, 0) = 0, 'partial', 'done')
        ELSE 'failed' END
    WHERE id = NEW.item_id AND task_id = NEW.id;
    -- Whoever was under way when its job ended has nothing to settle any more.
    UPDATE scrape_logs SET ended_us = NEW.settled_us, status = 'interrupted'
    WHERE task_id = NEW.id AND ended_us IS NULL AND NEW.state = 'skipped' AND NEW.error = 'the job ended';
END;
";

const WIKIS: &str = "
CREATE TABLE wikis (
    id INTEGER PRIMARY KEY,
    api TEXT NOT NULL UNIQUE,
    site TEXT,
    progress TEXT,
    holder INTEGER,
    -- Content that it brought first, as it is and packed.
    contents INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    packed_bytes INTEGER NOT NULL DEFAULT 0,
    created_us INTEGER NOT NULL
) STRICT;

CREATE TABLE wiki_pages (
    wiki_id INTEGER NOT NULL,
    page_id INTEGER NOT NULL,
    namespace INTEGER NOT NULL,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    redirect INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    whole INTEGER NOT NULL,
    -- Its past is another than what is kept of it.
    stale INTEGER NOT NULL DEFAULT 0,
    -- A revision came whose parent was not there.
    suspect INTEGER NOT NULL DEFAULT 0,
    -- The round in which it was last listed; 0 when it came up beside something else.
    round INTEGER NOT NULL,
    PRIMARY KEY (wiki_id, page_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX wiki_pages_title ON wiki_pages (wiki_id, title);

CREATE TABLE wiki_revisions (
    wiki_id INTEGER NOT NULL,
    revision_id INTEGER NOT NULL,
    page_id INTEGER NOT NULL,
    parent_id INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    user TEXT,
    user_id INTEGER NOT NULL,
    comment TEXT,
    sha1 TEXT,
    size INTEGER NOT NULL,
    minor INTEGER NOT NULL,
    -- 1 text, 2 comment, 4 user, 8 from administrators too.
    hidden INTEGER NOT NULL,
    tags TEXT NOT NULL,
    PRIMARY KEY (wiki_id, revision_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX wiki_revisions_page ON wiki_revisions (wiki_id, page_id, revision_id);

CREATE TABLE wiki_slots (
    wiki_id INTEGER NOT NULL,
    revision_id INTEGER NOT NULL,
    nth INTEGER NOT NULL,
    role TEXT NOT NULL,
    model TEXT NOT NULL,
    format TEXT NOT NULL,
    content_id INTEGER,
    PRIMARY KEY (wiki_id, revision_id, nth)
) STRICT, WITHOUT ROWID;

-- The same text is kept once, whoever wrote it where.
CREATE TABLE wiki_contents (
    id INTEGER PRIMARY KEY,
    sha1 BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    packing TEXT NOT NULL,
    bytes BLOB NOT NULL
) STRICT;

CREATE TABLE wiki_files (
    id INTEGER PRIMARY KEY,
    wiki_id INTEGER NOT NULL,
    title TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    sha1 TEXT,
    size INTEGER NOT NULL,
    mime TEXT NOT NULL,
    url TEXT,
    user TEXT,
    comment TEXT,
    superseded INTEGER NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0,
    problem TEXT,
    UNIQUE (wiki_id, title, at_us)
) STRICT;
CREATE INDEX wiki_files_wanted ON wiki_files (wiki_id, id) WHERE NOT kept AND url IS NOT NULL;
";
