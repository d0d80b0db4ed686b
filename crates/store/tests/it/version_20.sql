-- A store as version 20 wrote it: a job with failures, a learned delay, a source that was never fetched. A released version never
-- changes, so neither does this.
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
INSERT INTO domains VALUES(1,'127.0.0.1:18778',2.0,0.0,NULL,1795128252286185,1795128251286185,0,NULL,NULL,2,NULL,1795128253287257,'handed over',X'0101d0ace8dd9baab00602cca4e8dd9baab00603d293eedc9baab00605d28af4db9baab00606d0ace8dd9baab00608cbf5dbe60d0b80897a0f0112021ccaf5dbe60d1de8071e904e2e6c7ec8');
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
, revival TEXT, pruned_us INTEGER) STRICT;
INSERT INTO jobs VALUES(1,'news','done','{"delay":"0.05s","format":"none","max_retries":"0"}',1795128236109624,1795128251289372,NULL,0,1,5,1,4,0,1,0,NULL,NULL);
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
INSERT INTO lanes VALUES(1,1,1,NULL,NULL,NULL);
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
, item_id INTEGER, source_id INTEGER, forgiven INTEGER NOT NULL DEFAULT 0, requests INTEGER NOT NULL DEFAULT 0, last_us INTEGER, last_took_us INTEGER, last_outcome TEXT, fetched_us INTEGER, final_url TEXT, content_type TEXT, sha256 BLOB, file TEXT, etag BLOB, last_modified BLOB, method TEXT, body BLOB, headers TEXT, bodiless INTEGER NOT NULL DEFAULT 0, changed INTEGER) STRICT;
INSERT INTO tasks VALUES(1,1,1,NULL,'http://127.0.0.1:18778/1',2930062455328389488,'listed','done',1795128236111437,0,0,NULL,200,8,NULL,1795128236167930,NULL,NULL,0,1,1795128236164012,819,'success',1795128236164698,NULL,'text/plain',X'58b105f20b492f9b7e3bfd7383a92677c801cd5ae5d153194bbfc65c67d5637e',NULL,NULL,NULL,NULL,NULL,NULL,0,1);
INSERT INTO tasks VALUES(2,1,1,NULL,'http://127.0.0.1:18778/500',8631622557977382440,'listed','failed',1795128236111437,0,0,NULL,500,NULL,'status 500',1795128236222922,NULL,NULL,0,1,1795128236214954,4855,'server_error',1795128236218618,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO tasks VALUES(3,1,1,NULL,'http://127.0.0.1:18778/500b',-2116861083971578906,'listed','failed',1795128236111437,0,0,NULL,500,NULL,'status 500',1795128241224241,NULL,NULL,0,1,1795128241219833,679,'server_error',1795128241220236,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO tasks VALUES(4,1,1,NULL,'http://127.0.0.1:18778/404',-9053425564890089847,'listed','failed',1795128236111437,0,0,NULL,404,NULL,'status 404',1795128251244465,NULL,NULL,0,1,1795128251227024,641,'answered',1795128251227557,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO tasks VALUES(5,1,1,NULL,'http://127.0.0.1:18778/limited',-6588544872210790083,'listed','failed',1795128236111437,0,0,NULL,429,NULL,'status 429',1795128251288880,NULL,NULL,0,1,1795128251285780,774,'rate_limited',1795128251286169,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
CREATE TABLE IF NOT EXISTS "logged_attempts" (
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
, crawl_delay_us INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
INSERT INTO robots VALUES('http://127.0.0.1:18778',1795128236113986,404,X'',0);
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
INSERT INTO sources VALUES(1,'t','feed','http://127.0.0.1:18778/feed','http://127.0.0.1:18778/feed','listed',1,1,1,NULL,'{}','{}',1795128253294339,0,NULL,NULL,NULL,0);
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
, page_key BLOB, scraped_as INTEGER) STRICT;
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
INSERT INTO counts VALUES('bytes',8);
INSERT INTO counts VALUES('done',1);
INSERT INTO counts VALUES('failed',4);
INSERT INTO counts VALUES('granted',7);
INSERT INTO counts VALUES('outcome.answered',2);
INSERT INTO counts VALUES('outcome.rate_limited',1);
INSERT INTO counts VALUES('outcome.server_error',2);
INSERT INTO counts VALUES('outcome.success',2);
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
, commits INTEGER NOT NULL DEFAULT 0, stamp INTEGER NOT NULL DEFAULT 0, removed_job INTEGER NOT NULL DEFAULT 0, used_task INTEGER NOT NULL DEFAULT 0, used_lane INTEGER NOT NULL DEFAULT 0, used_domain INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO identity VALUES(X'bcec55f194d4189c87ed4704f807e8ea','10183623.1795128236050292128',NULL,0,49,-1684033663122934698,0,0,0,0);
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
INSERT INTO timeline VALUES('c5080052-0e9e-4867-8ec0-c8f6afd04a8d time:[4026531834]',1795124017992398,1795128253287767,1795128253287768);
CREATE TABLE permits (
    domain_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    intent TEXT NOT NULL,
    granted_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (domain_id, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE workers (
    job_id INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    told_us INTEGER NOT NULL, index_bytes INTEGER,
    PRIMARY KEY (job_id, holder)
) STRICT, WITHOUT ROWID;
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
CREATE TABLE sharers (
    task_id INTEGER NOT NULL,
    item_id INTEGER NOT NULL,
    PRIMARY KEY (task_id, item_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE hooks (
    item_id INTEGER PRIMARY KEY,
    -- Who runs it.
    holder INTEGER
) STRICT;
CREATE TABLE origins (
    job_id INTEGER NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (job_id, origin)
) STRICT, WITHOUT ROWID;
INSERT INTO origins VALUES(1,'http://127.0.0.1:18778');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('holders',2);
INSERT INTO sqlite_sequence VALUES('sources',1);
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
CREATE INDEX wiki_pages_title ON wiki_pages (wiki_id, title);
CREATE INDEX wiki_revisions_page ON wiki_revisions (wiki_id, page_id, revision_id);
CREATE INDEX wiki_files_wanted ON wiki_files (wiki_id, id) WHERE NOT kept AND url IS NOT NULL;
CREATE INDEX permits_until ON permits (until_us);
CREATE INDEX items_source ON items (source_id, id);
CREATE TRIGGER details_follow_items AFTER DELETE ON items
BEGIN
    DELETE FROM item_details WHERE item_id = OLD.id;
END;
CREATE INDEX items_page ON items (page_key) WHERE page_key IS NOT NULL;
CREATE INDEX sharers_item ON sharers (item_id);
CREATE TRIGGER sharers_follow_tasks AFTER DELETE ON tasks WHEN OLD.item_id IS NOT NULL
BEGIN
    DELETE FROM sharers WHERE task_id = OLD.id;
END;
CREATE TRIGGER sharers_follow_items AFTER DELETE ON items
BEGIN
    DELETE FROM sharers WHERE item_id = OLD.id;
END;
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
CREATE TRIGGER hooks_follow_items AFTER DELETE ON items
BEGIN
    DELETE FROM hooks WHERE item_id = OLD.id;
END;
CREATE TRIGGER origins_follow_jobs AFTER DELETE ON jobs BEGIN
    DELETE FROM origins WHERE job_id = OLD.id;
END;
CREATE VIEW attempts AS
    SELECT task_id, started_us, took_us, outcome, status FROM logged_attempts
    UNION ALL
    SELECT id, last_us, last_took_us, last_outcome, status FROM tasks
    WHERE requests = 1 AND last_us IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM logged_attempts WHERE task_id = tasks.id AND started_us = tasks.last_us);
CREATE INDEX robots_delay ON robots (crawl_delay_us) WHERE crawl_delay_us > 0;
COMMIT;
PRAGMA user_version=20;
PRAGMA application_id=1129141337;
