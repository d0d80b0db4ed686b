-- The tables as version 1 made them: what was released is never changed, so neither is this.
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

PRAGMA application_id = 0x434d5459;
PRAGMA user_version = 1;
