-- A store as version 15 wrote it: a job that is done, one that was interrupted, a source with two items, a pinned domain, one
-- that its server closed for an hour, and one with a lent permit. A released version never changes, so neither does this.
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
INSERT INTO domains VALUES(1,'127.0.0.1:18777',0.0,0.0,NULL,NULL,NULL,0,NULL,NULL,4,NULL,1795011374253671,'stopped',X'0101e6bba3f5b4a3b00602dcb0a3f5b4a3b00606dcbba3f5b4a3b00608eadd9fb80a0f051ce9dd9fb80a1d46b388');
INSERT INTO domains VALUES(2,'reuters.com',3.0,0.0,NULL,NULL,NULL,1,NULL,NULL,1,NULL,1795011369260445,'handed over',X'0101d4d0c2f0b4a3b00605d4d0c2f0b4a3b0060bc08db701120325397f93');
INSERT INTO domains VALUES(3,'said.example',2.0,0.0,NULL,1795014969269616,1795011369269616,0,NULL,NULL,1,NULL,1795011369269858,'handed over',X'0101e0e5c3f0b4a3b00602e0e5c3f0b4a3b00603e0f5e0d9cfa3b00605e0e5c3f0b4a3b006070108f1f2a1b80a0b80897a100112021cf0f2a1b80a1d80dddb01ce3af5cf');
INSERT INTO domains VALUES(4,'lent.example',0.0,0.0,NULL,NULL,NULL,0,NULL,NULL,1,NULL,1795011369278656,'handed over',X'01019ef2c4f0b4a3b00602c0edc4f0b4a3b00608e1b6a2b80a1ce0b6a2b80a22c0edc4f0b4a3b006c0843de0b6a2b80a00009e8adfacb9a3b00614c1edc4f0b4a3b006e0b6a2b80a0000000042692fc1');
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
INSERT INTO jobs VALUES(1,'small','done','{"delay":"10ms","format":"files","out":"pages"}',1795011369232347,1795011369249501,NULL,0,1,1,1,0,0,0,0,NULL,NULL);
INSERT INTO jobs VALUES(2,'scrape','running','{"kind":"scrape"}',1795011370259042,NULL,NULL,0,1,0,0,0,0,0,0,NULL,NULL);
INSERT INTO jobs VALUES(3,'news','running','{"delay":"3s","format":"files","out":"pages"}',1795011371261393,NULL,NULL,0,1,4,1,0,0,0,0,NULL,NULL);
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
INSERT INTO lanes VALUES(2,3,1,1795011374253214,NULL,NULL);
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
, item_id INTEGER, source_id INTEGER, forgiven INTEGER NOT NULL DEFAULT 0, requests INTEGER NOT NULL DEFAULT 0, last_us INTEGER, last_took_us INTEGER, last_outcome TEXT, fetched_us INTEGER, final_url TEXT, content_type TEXT, sha256 BLOB, file TEXT, etag BLOB, last_modified BLOB, method TEXT, body BLOB, headers TEXT, bodiless INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO tasks VALUES(1,1,1,NULL,'http://127.0.0.1:18777/a.html',-3086985876684452894,'listed','done',1795011369233387,0,0,NULL,200,19,NULL,1795011369248824,NULL,NULL,0,1,1795011369244932,732,'success',1795011369245416,NULL,'text/html',X'acce960d9bdc7c09da7b69bb74b256c9d86cad76952ed8ae753cbdfc2b8e3283','127.0.0.1_18777/a-28d86664e3fc4867.html',X'227822',NULL,NULL,NULL,NULL,0);
INSERT INTO tasks VALUES(2,3,2,NULL,'http://127.0.0.1:18777/p1.html',3157102916892320445,'listed','done',1795011371262417,0,0,NULL,200,19,NULL,1795011374250868,NULL,NULL,0,1,1795011374246958,723,'success',1795011374247441,NULL,'text/html',X'acce960d9bdc7c09da7b69bb74b256c9d86cad76952ed8ae753cbdfc2b8e3283','127.0.0.1_18777/p1-4064e8a8f9fda982.html',X'227822',NULL,NULL,NULL,NULL,0);
INSERT INTO tasks VALUES(3,3,2,NULL,'http://127.0.0.1:18777/p2.html',-3181776975409289515,'listed','waiting',1795011371262417,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO tasks VALUES(4,3,2,NULL,'http://127.0.0.1:18777/missing',-4931306815541297277,'listed','waiting',1795011371262417,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO tasks VALUES(5,3,2,NULL,'http://127.0.0.1:18777/p3.html',-7455279273331546205,'listed','waiting',1795011371262417,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
CREATE TABLE attempts (
    task_id INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    took_us INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    status INTEGER,
    PRIMARY KEY (task_id, started_us)
) STRICT, WITHOUT ROWID;
INSERT INTO attempts VALUES(1,1795011369244932,732,'success',200);
INSERT INTO attempts VALUES(2,1795011374246958,723,'success',200);
CREATE TABLE robots (
    origin TEXT PRIMARY KEY,
    fetched_us INTEGER NOT NULL,
    status INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO robots VALUES('http://127.0.0.1:18777',1795011369235488,404,X'');
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
INSERT INTO sources VALUES(1,'Feed','feed','http://127.0.0.1:18777/feed.xml','http://127.0.0.1:18777/feed.xml','listed',1,1,1,NULL,'{}','{"etag":"\"x\"","last_fetch_at":"2026-11-18T14:16:10.259041Z","validators_of":"http://127.0.0.1:18777/feed.xml"}',1795011370247747,0,NULL,NULL,NULL,1);
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
INSERT INTO items VALUES(1,1,'guid:1','http://127.0.0.1:18777/i1.html','listed','One',NULL,'none',8981590058855607083,1795011371247154,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,X'9c22dee2fb281b7463e2211c181178bd',NULL);
INSERT INTO items VALUES(2,1,'guid:2','http://127.0.0.1:18777/i2.html','listed','Two',NULL,'none',-1549139189776591260,1795011371247154,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,X'ad24c7e46e8e145db74bad2111602ba0',NULL);
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
INSERT INTO fetch_runs VALUES(1,1,1795011370259821,1795011371247665,'ok',1795011370259041,'{}','{"etag":"\"x\"","last_fetch_at":"2026-11-18T14:16:10.259041Z","validators_of":"http://127.0.0.1:18777/feed.xml"}',200,2,2,0,NULL,NULL);
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
INSERT INTO counts VALUES('bytes',38);
INSERT INTO counts VALUES('done',2);
INSERT INTO counts VALUES('granted',6);
INSERT INTO counts VALUES('outcome.answered',1);
INSERT INTO counts VALUES('outcome.rate_limited',1);
INSERT INTO counts VALUES('outcome.success',4);
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO secrets VALUES('permits',X'836492a18842e51b830ec4f6276cf4f5ba11e92cd912fd4b70cb9f17792503ed');
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
, commits INTEGER NOT NULL DEFAULT 0, stamp INTEGER NOT NULL DEFAULT 0, removed_job INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO identity VALUES(X'530a1663ae4ec2fdd743ac40569efb80','10749008.1795011369212775965',NULL,0,83,7760776946106562915,0);
CREATE TABLE looks (
    domain_id INTEGER PRIMARY KEY,
    wished_us INTEGER NOT NULL,
    epoch INTEGER,
    sight TEXT,
    seen_us INTEGER
) STRICT;
INSERT INTO looks VALUES(1,1795011369289596,2,'{"crawl_delay_us":0,"domain":"127.0.0.1:18777","epoch":2,"in_line":1,"pace":"0101d49dc6f0b4a3b0060288e4c0f0b4a3b00606aeefc0f0b4a3b00608e7dd9fb80a0f021ce6dd9fb80a824a16d7"}',1795011369289789);
CREATE TABLE timeline (
    -- Which boot of which machine it was set in.
    boot TEXT NOT NULL,
    -- When that machine booted, on this timeline.
    booted_us INTEGER NOT NULL,
    -- The latest moment that anybody is known to have read on it, and what the wall clock read then.
    last_us INTEGER NOT NULL,
    wall_us INTEGER NOT NULL
) STRICT;
INSERT INTO timeline VALUES('before',1795007838949282,1795011374253671,1795011374253957);
CREATE TABLE permits (
    domain_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    intent TEXT NOT NULL,
    granted_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (domain_id, id)
) STRICT, WITHOUT ROWID;
INSERT INTO permits VALUES(4,2802359136,'fetch',1795011369278304,1795011969278487);
CREATE TABLE workers (
    job_id INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    told_us INTEGER NOT NULL,
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
INSERT INTO item_details VALUES(1,-932008405650669255,'First',1,NULL,0,NULL,'[]','[]','[]');
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
INSERT INTO origins VALUES(1,'http://127.0.0.1:18777');
INSERT INTO origins VALUES(3,'http://127.0.0.1:18777');
DELETE FROM sqlite_sequence;
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
COMMIT;
PRAGMA user_version=15;
PRAGMA application_id=1129141337;
