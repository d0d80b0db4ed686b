-- A store as version 9 wrote it: a job that was interrupted, a source with two items, a pinned domain, one that its
-- server closed for an hour, and one with a permit that was lent. What was released is never changed, so neither is this.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE holders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    since_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    died_us INTEGER
, status TEXT, told_us INTEGER, proof TEXT, sights TEXT) STRICT;
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
INSERT INTO domains VALUES(1,'127.0.0.1:18765',0.0,0.0,NULL,NULL,NULL,0,NULL,NULL,3,NULL,1794973002614661,'stopped',X'010198ea9d8397a1b00602ced79d8397a1b0060698ea9d8397a1b00608e182deb90b0f041ce082deb90b7835876a');
INSERT INTO domains VALUES(2,'reuters.com',3.0,0.0,NULL,NULL,NULL,1,NULL,NULL,1,NULL,1794972989571342,'handed over',X'010184fbe5f696a1b0060584fbe5f696a1b0060bc08db701120341b08761');
INSERT INTO domains VALUES(3,'said.example',2.0,0.0,NULL,1794976589600136,1794972989600136,0,NULL,NULL,1,NULL,1794972989601716,'handed over',X'010190c6e9f696a1b0060290c6e9f696a1b0060390d686e0b1a1b0060590c6e9f696a1b00607010889e3b4bb0b0b80897a100112021c88e3b4bb0b1d80dddb019b2d9d12');
INSERT INTO domains VALUES(4,'lent.example',0.0,0.0,NULL,NULL,NULL,0,NULL,NULL,1,NULL,1794972989637907,'handed over',X'0101ca93eef696a1b00602fe8aeef696a1b00608c085b7bb0b1cbf85b7bb0b22fe8aeef696a1b006c0843dbf85b7bb0b0000caaf8ab097a1b00614ff8aeef696a1b006bf85b7bb0b000000002aab6547');
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
INSERT INTO jobs VALUES(1,'news','running','{"delay":"2s","format":"none"}',1794972986078189,NULL,NULL,0,1,4,1,0,0,0,0);
INSERT INTO jobs VALUES(2,'scrape','running','{"kind":"scrape"}',1794972989386873,NULL,NULL,0,1,0,0,0,0,0,0);
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
    holder INTEGER, given_up TEXT,
    UNIQUE (job_id, domain_id)
) STRICT;
INSERT INTO lanes VALUES(1,1,1,1794972988945187,NULL,NULL);
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
, item_id INTEGER, source_id INTEGER, forgiven INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO tasks VALUES(1,1,1,NULL,'http://127.0.0.1:18765/p1.html',4206850399807653345,'listed','done',1794972986079986,0,0,NULL,200,14,NULL,1794972988088000,NULL,NULL,0);
INSERT INTO tasks VALUES(2,1,1,NULL,'http://127.0.0.1:18765/p2.html',1151488935925857166,'listed','waiting',1794972986079986,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO tasks VALUES(3,1,1,NULL,'http://127.0.0.1:18765/missing',6195217369123187724,'listed','waiting',1794972986079986,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO tasks VALUES(4,1,1,NULL,'http://127.0.0.1:18765/p3.html',-8133790313643489547,'listed','waiting',1794972986079986,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
CREATE TABLE attempts (
    task_id INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    took_us INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    status INTEGER,
    PRIMARY KEY (task_id, started_us)
) STRICT, WITHOUT ROWID;
INSERT INTO attempts VALUES(1,1794972988083925,923,'success',200);
CREATE TABLE robots (
    origin TEXT PRIMARY KEY,
    fetched_us INTEGER NOT NULL,
    status INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO robots VALUES('http://127.0.0.1:18765',1794972986098715,404,X'');
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
, epoch INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO sources VALUES(1,'Feed','feed','http://127.0.0.1:18765/feed.xml','http://127.0.0.1:18765/feed.xml','listed',1,1,1,NULL,'{"cadence":{"every_minutes":480,"mode":"interval"}}','{"last_fetch_at":"2026-11-18T03:36:41.66598Z","last_modified":"Wed, 18 Nov 2026 03:36:24 GMT","validators_of":"http://127.0.0.1:18765/feed.xml"}',1794973001617179,0,NULL,NULL,NULL,1);
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
INSERT INTO items VALUES(1,1,'guid:a','http://127.0.0.1:18765/p1.html','listed','A',NULL,'none',-3307884455382513116,1794973002613417,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO items VALUES(2,1,'guid:b','http://127.0.0.1:18765/p2.html','listed','B',NULL,'none',-3490142683870251445,1794973002613417,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
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
INSERT INTO fetch_runs VALUES(1,1,1794973001669862,1794973002614016,'ok',1794973001665980,'{}','{"last_fetch_at":"2026-11-18T03:36:41.66598Z","last_modified":"Wed, 18 Nov 2026 03:36:24 GMT","validators_of":"http://127.0.0.1:18765/feed.xml"}',200,2,2,0,NULL,NULL);
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
CREATE TABLE counts (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counts VALUES('bytes',14);
INSERT INTO counts VALUES('done',1);
INSERT INTO counts VALUES('granted',5);
INSERT INTO counts VALUES('outcome.answered',1);
INSERT INTO counts VALUES('outcome.rate_limited',1);
INSERT INTO counts VALUES('outcome.success',3);
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
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
, epoch INTEGER NOT NULL DEFAULT 0) STRICT;
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
CREATE TABLE identity (
    id BLOB NOT NULL,
    -- Which file it is in: a copy that was put back is in another one.
    file TEXT,
    -- Since when it is a copy; 0 until somebody who knows the time uses it.
    restored_us INTEGER,
    -- How often domains were forgotten: whoever remembers their numbers looks again.
    forgotten INTEGER NOT NULL DEFAULT 0
, commits INTEGER NOT NULL DEFAULT 0, stamp INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO identity VALUES(X'b38e091e0b3b99a9bb5c73e13eb8f891',NULL,NULL,0,69,8648099550242902894);
CREATE TABLE looks (
    domain_id INTEGER PRIMARY KEY,
    wished_us INTEGER NOT NULL,
    epoch INTEGER,
    sight TEXT,
    seen_us INTEGER
) STRICT;
CREATE TABLE timeline (
    -- Which boot of which machine it was set in.
    boot TEXT NOT NULL,
    -- When that machine booted, on this timeline.
    booted_us INTEGER NOT NULL,
    -- The latest moment that anybody is known to have read on it, and what the wall clock read then.
    last_us INTEGER NOT NULL,
    wall_us INTEGER NOT NULL
) STRICT;
INSERT INTO timeline VALUES('before',1794942665028934,1794973002614661,1794973002615163);
CREATE TABLE permits (
    domain_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    intent TEXT NOT NULL,
    granted_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (domain_id, id)
) STRICT, WITHOUT ROWID;
INSERT INTO permits VALUES(4,3077423807,'fetch',1794972989637311,1794973049637568);
INSERT INTO sqlite_sequence VALUES('holders',7);
INSERT INTO sqlite_sequence VALUES('sources',1);
INSERT INTO sqlite_sequence VALUES('items',2);
CREATE INDEX domains_held ON domains (holder) WHERE holder IS NOT NULL;
CREATE INDEX domains_wanted ON domains (holder) WHERE wanted_by IS NOT NULL;
CREATE INDEX lanes_due ON lanes (job_id, due_us) WHERE holder IS NULL AND due_us IS NOT NULL;
CREATE INDEX lanes_served ON lanes (holder) WHERE holder IS NOT NULL;
CREATE INDEX lanes_domain ON lanes (domain_id);
CREATE UNIQUE INDEX tasks_key ON tasks (job_id, url_key);
CREATE INDEX tasks_waiting ON tasks (lane_id, ready_us, id) WHERE state = 'waiting';
CREATE INDEX tasks_trouble ON tasks (job_id, state, settled_us) WHERE state IN ('failed', 'skipped');
CREATE UNIQUE INDEX items_identity ON items (source_id, identity);
CREATE INDEX items_unscraped ON items (source_id, id) WHERE state = 'none';
CREATE INDEX items_unscraped_all ON items (id) WHERE state = 'none';
CREATE INDEX items_failed ON items (source_id, task_id) WHERE state = 'failed';
CREATE INDEX items_failed_all ON items (task_id) WHERE state = 'failed';
CREATE INDEX items_in_flight ON items (source_id, wake_us) WHERE state IN ('waiting', 'running');
CREATE INDEX fetch_runs_source ON fetch_runs (source_id, id);
CREATE INDEX scrape_logs_last ON scrape_logs (source_id, started_us);
CREATE INDEX scrape_logs_item ON scrape_logs (item_id, id);
CREATE INDEX scrape_logs_open ON scrape_logs (task_id) WHERE ended_us IS NULL;
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
END
;
CREATE INDEX wiki_pages_title ON wiki_pages (wiki_id, title);
CREATE INDEX wiki_revisions_page ON wiki_revisions (wiki_id, page_id, revision_id);
CREATE INDEX wiki_files_wanted ON wiki_files (wiki_id, id) WHERE NOT kept AND url IS NOT NULL;
CREATE INDEX permits_until ON permits (until_us);
COMMIT;
PRAGMA user_version=9;
PRAGMA application_id=1129141337;
