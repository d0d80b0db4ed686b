-- The tables, and the views that people query.
--
-- Tables have singular names, and times are microseconds since 1970 in UTC. Views have the names of the SQLite store's tables,
-- and show the same times as `timestamptz` columns that end with `_at`. What changes often has room for changes on its own page
-- (fillfactor), and no index contains what every heartbeat changes.

CREATE TABLE identity (
    id bytea NOT NULL,
    -- The highest id of a job that was removed: it is not given out again.
    removed_job bigint NOT NULL DEFAULT 0
);

-- One row that is changed by whatever other processes should look at soon.
CREATE TABLE news (n bigint NOT NULL) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
INSERT INTO news VALUES (0);

-- Which history the rows are from: a promoted server starts a new one, and may lack the last commits. Null until one did.
CREATE TABLE server (history bigint NOT NULL, changed_us bigint);
INSERT INTO server VALUES (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, NULL);

-- One row per connection that writes: its last commit. Who misses the answer to a commit finds it here. Transaction ids would not
-- do: a crash forgets some, which are then used again.
CREATE TABLE stamp (id bigint PRIMARY KEY, n bigint NOT NULL, at_us bigint NOT NULL)
    WITH (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- One row per process, which its heartbeat changes. Ids are random: a failover that loses writes must not repeat them.
CREATE TABLE holder (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    -- The machine's name.
    machine text NOT NULL,
    since_us bigint NOT NULL,
    until_us bigint NOT NULL,
    -- Changes with every heartbeat.
    beat bigint NOT NULL DEFAULT 0,
    died_us bigint,
    -- Its clock minus the database's clock; null until it has joined the store's time.
    offset_us bigint,
    status text,
    sights text,
    told_us bigint
) WITH (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- The clock that holders used last, minus the database's clock.
CREATE TABLE timeline (offset_us bigint NOT NULL);
INSERT INTO timeline VALUES (0);

CREATE TABLE domain (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    domain text NOT NULL COLLATE "C" UNIQUE,
    adaptive_delay_seconds double precision NOT NULL DEFAULT 0,
    adaptive_delay_floor_seconds double precision NOT NULL DEFAULT 0,
    floor_confirmed_us bigint,
    server_until_us bigint,
    server_stated_us bigint,
    pinned boolean NOT NULL DEFAULT false,
    paused_until_us bigint,
    holder bigint,
    -- Random; compared by equality only.
    epoch bigint NOT NULL DEFAULT 0,
    -- How often it was taken, for people.
    takes bigint NOT NULL DEFAULT 0,
    wanted_by bigint,
    released_us bigint,
    -- The history in which it was taken or released last.
    history bigint NOT NULL DEFAULT 0,
    -- new, held, handed over, stopped
    left_as text NOT NULL DEFAULT 'new',
    pace bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX domain_held ON domain (holder) WHERE holder IS NOT NULL;
CREATE INDEX domain_wanted ON domain (holder) WHERE wanted_by IS NOT NULL;

-- A domain that somebody wishes to see, and what its holder answered.
CREATE TABLE look (
    domain_id bigint PRIMARY KEY,
    wished_us bigint NOT NULL,
    epoch bigint,
    sight text,
    seen_us bigint
) WITH (fillfactor = 50);

-- How each domain is doing, as its holder reported it a while ago; lists are sorted by it.
CREATE TABLE domain_activity (
    domain_id bigint PRIMARY KEY,
    -- Null if only its tasks were counted.
    reported_us bigint,
    delay_ms bigint NOT NULL DEFAULT 0,
    learned_ms bigint NOT NULL DEFAULT 0,
    -- 0 means never.
    held_until_us bigint NOT NULL DEFAULT 0,
    bound_by text,
    success_streak bigint NOT NULL DEFAULT 0,
    error_streak bigint NOT NULL DEFAULT 0,
    last_us bigint NOT NULL DEFAULT 0,
    last_outcome text,
    last_status bigint,
    waiting bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX domain_activity_delay ON domain_activity (delay_ms, domain_id);
CREATE INDEX domain_activity_learned ON domain_activity (learned_ms, domain_id);
CREATE INDEX domain_activity_held ON domain_activity (held_until_us, domain_id);
CREATE INDEX domain_activity_last ON domain_activity (last_us, domain_id);
CREATE INDEX domain_activity_waiting ON domain_activity (waiting, domain_id);

-- What happened on each domain during the last day, packed.
CREATE TABLE domain_history (
    domain_id bigint PRIMARY KEY,
    until_us bigint NOT NULL,
    samples bytea NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX domain_history_until ON domain_history (until_us);
-- It has no structure that could be compressed.
ALTER TABLE domain_history ALTER samples SET STORAGE EXTERNAL;

-- No foreign keys: they would lock the rows of domains.
CREATE FUNCTION activity_follows_domain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM domain_activity WHERE domain_id IN (SELECT id FROM gone);
    DELETE FROM domain_history WHERE domain_id IN (SELECT id FROM gone);
    RETURN NULL;
END $$;
CREATE TRIGGER activity_follows_domain AFTER DELETE ON domain REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION activity_follows_domain();

-- The outcomes of all requests, in intervals of ten seconds.
CREATE TABLE ten_seconds (
    from_us bigint PRIMARY KEY,
    success bigint NOT NULL,
    answered bigint NOT NULL,
    rate_limited bigint NOT NULL,
    blocked bigint NOT NULL,
    unavailable bigint NOT NULL,
    server_error bigint NOT NULL,
    timeout bigint NOT NULL,
    network_error bigint NOT NULL,
    retries bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 50);

-- Who changed what.
CREATE TABLE audit_entry (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us bigint NOT NULL,
    who text NOT NULL,
    role text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    impact text NOT NULL,
    result text NOT NULL
);

CREATE TABLE permit (
    domain_id bigint NOT NULL,
    id bigint NOT NULL,
    intent text NOT NULL,
    granted_us bigint NOT NULL,
    until_us bigint NOT NULL,
    PRIMARY KEY (domain_id, id)
);
CREATE INDEX permit_until ON permit (until_us);

CREATE TABLE job (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name text NOT NULL COLLATE "C" UNIQUE,
    state text NOT NULL,
    options text NOT NULL,
    created_us bigint NOT NULL,
    ended_us bigint,
    message text,
    unread boolean NOT NULL DEFAULT false,
    swept boolean NOT NULL DEFAULT true,
    tasks bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    rate_limited bigint NOT NULL DEFAULT 0,
    retries bigint NOT NULL DEFAULT 0,
    -- Which tasks wait again, while a job that was reopened is not swept; as JSON.
    revival text,
    -- The end after which old rows were deleted.
    pruned_us bigint
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX job_state ON job (state);

-- Who reads a list into a job.
CREATE TABLE filler (
    job_id bigint NOT NULL,
    holder bigint NOT NULL,
    PRIMARY KEY (job_id, holder)
);

-- Who works on a job. The rows of what it settled before told_us are written.
CREATE TABLE worker (
    job_id bigint NOT NULL,
    holder bigint NOT NULL,
    told_us bigint NOT NULL,
    index_bytes bigint,
    PRIMARY KEY (job_id, holder)
) WITH (fillfactor = 50);

-- Origins that the operator listed in a job.
CREATE TABLE origin (
    job_id bigint NOT NULL,
    origin text NOT NULL COLLATE "C",
    PRIMARY KEY (job_id, origin)
);

-- The tasks of one job on one domain.
CREATE TABLE lane (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    domain_id bigint NOT NULL,
    due_us bigint,
    holder bigint,
    given_up text,
    UNIQUE (job_id, domain_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX lane_due ON lane (job_id, due_us) WHERE holder IS NULL AND due_us IS NOT NULL;
CREATE INDEX lane_served ON lane (holder) WHERE holder IS NOT NULL;
CREATE INDEX lane_domain ON lane (domain_id);

CREATE TABLE task (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    lane_id bigint NOT NULL,
    -- The lane of its own URL, while a redirect has moved it to another one.
    home_lane_id bigint,
    url text NOT NULL,
    url_key bigint NOT NULL,
    lead text NOT NULL,
    state text NOT NULL DEFAULT 'waiting',
    ready_us bigint NOT NULL,
    retries bigint NOT NULL DEFAULT 0,
    forgiven bigint NOT NULL DEFAULT 0,
    hops bigint NOT NULL DEFAULT 0,
    at_url text,
    status bigint,
    bytes bigint,
    error text,
    settled_us bigint,
    item_id bigint,
    source_id bigint,
    -- How many requests were sent since it was added, retried or refreshed, and the last of them.
    requests bigint NOT NULL DEFAULT 0,
    last_us bigint,
    last_took_us bigint,
    last_outcome text,
    -- When its answer came, and where redirects led, if they did.
    fetched_us bigint,
    final_url text,
    -- The page as it was last fetched; stays while it is fetched again.
    content_type text,
    sha256 bytea,
    file text,
    etag bytea,
    last_modified bytea,
    -- Whether it is new or its body differs from the one before; null if it is not known.
    changed boolean,
    method text,
    body bytea,
    headers text,
    -- A redirect made it a plain GET.
    bodiless boolean NOT NULL DEFAULT false
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX task_key ON task (job_id, url_key);
CREATE INDEX task_of_job ON task (job_id, id);
CREATE INDEX task_waiting ON task (lane_id, ready_us, id) WHERE state = 'waiting';
CREATE INDEX task_trouble ON task (job_id, state, settled_us) WHERE state IN ('failed', 'skipped');

-- What failed tasks have in common: the status of the last response, or else the outcome of the last attempt.
CREATE FUNCTION reason_of(status bigint, outcome text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(status::text, outcome, '') COLLATE "C"
$$;
CREATE INDEX task_failed ON task (job_id, reason_of(status, last_outcome), settled_us) WHERE state = 'failed';

-- Requests beyond the only one that most tasks need, which is in the task's own row.
CREATE TABLE logged_attempt (
    task_id bigint NOT NULL,
    started_us bigint NOT NULL,
    took_us bigint NOT NULL,
    outcome text NOT NULL,
    status bigint,
    PRIMARY KEY (task_id, started_us)
);

-- The view that people query is called robots.
CREATE TABLE robots_file (
    origin text PRIMARY KEY COLLATE "C",
    fetched_us bigint NOT NULL,
    status bigint NOT NULL,
    body bytea NOT NULL,
    -- The delay that the file asks for.
    crawl_delay_us bigint NOT NULL DEFAULT 0
);
CREATE INDEX robots_delay ON robots_file (crawl_delay_us) WHERE crawl_delay_us > 0;

-- Stands for a text that may be longer than an index allows. Whatever the database's encoding, it is the same.
CREATE FUNCTION hash_of(long text) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT sha256(convert_to(long, 'UTF8'))
$$;

CREATE TABLE source (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    kind text NOT NULL,
    url text NOT NULL COLLATE "C",
    listed_url text NOT NULL,
    lead text NOT NULL,
    enabled boolean NOT NULL DEFAULT true,
    scraping boolean NOT NULL DEFAULT true,
    auto_scrape boolean NOT NULL DEFAULT true,
    min_scrape_interval double precision,
    config_json text NOT NULL DEFAULT '{}',
    cursor_json text NOT NULL DEFAULT '{}',
    added_us bigint NOT NULL,
    failures bigint NOT NULL DEFAULT 0,
    retry_us bigint,
    error text,
    -- Who fetches it, and which claim that is.
    asked_by bigint,
    epoch bigint NOT NULL DEFAULT 0,
    -- Somebody asked to fetch it as soon as possible.
    requested_us bigint
);
CREATE UNIQUE INDEX source_url ON source (hash_of(url));

CREATE TABLE item (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_id bigint NOT NULL,
    identity text NOT NULL COLLATE "C",
    url text NOT NULL,
    lead text NOT NULL,
    title text,
    published_us bigint,
    state text NOT NULL DEFAULT 'none',
    content_hash bigint NOT NULL,
    seen_us bigint NOT NULL,
    changed_us bigint,
    task_id bigint,
    wake_us bigint,
    scraped_us bigint,
    status bigint,
    bytes bigint,
    content_type text,
    file text,
    error text,
    -- What the page is told apart by, whoever names it.
    page_key bytea,
    -- The item whose scrape brought the page, if that is another one.
    scraped_as bigint
);
CREATE UNIQUE INDEX item_identity ON item (source_id, hash_of(identity));
CREATE INDEX item_source ON item (source_id, id);
CREATE INDEX item_unscraped ON item (source_id, id) WHERE state = 'none';
CREATE INDEX item_unscraped_all ON item (id) WHERE state = 'none';
CREATE INDEX item_failed ON item (source_id, task_id) WHERE state = 'failed';
CREATE INDEX item_failed_all ON item (task_id) WHERE state = 'failed';
CREATE INDEX item_in_flight ON item (source_id, wake_us) WHERE state IN ('waiting', 'running');
CREATE INDEX item_page ON item (page_key) WHERE page_key IS NOT NULL;

-- What sources say about items, apart from the items so that listing them stays fast.
CREATE TABLE item_details (
    item_id bigint PRIMARY KEY REFERENCES item (id) ON DELETE CASCADE,
    -- Of everything that follows.
    hash bigint NOT NULL,
    summary text,
    summary_html boolean NOT NULL,
    content text,
    content_html boolean NOT NULL,
    author text,
    -- Lists in JSON.
    categories text NOT NULL,
    enclosures text NOT NULL,
    truncated text NOT NULL
);

-- Items whose hooks have not run yet.
CREATE TABLE hook (
    item_id bigint PRIMARY KEY REFERENCES item (id) ON DELETE CASCADE,
    -- Who runs it.
    holder bigint
);

-- Items that a task scrapes beside its own.
CREATE TABLE sharer (
    task_id bigint NOT NULL REFERENCES task (id) ON DELETE CASCADE,
    item_id bigint NOT NULL REFERENCES item (id) ON DELETE CASCADE,
    PRIMARY KEY (task_id, item_id)
);
CREATE INDEX sharer_item ON sharer (item_id);

CREATE TABLE fetch_run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_id bigint NOT NULL,
    started_us bigint NOT NULL,
    ended_us bigint NOT NULL,
    status text NOT NULL,
    window_end_us bigint NOT NULL,
    cursor_in text NOT NULL,
    cursor_out text NOT NULL,
    http_status bigint,
    found bigint NOT NULL,
    new bigint NOT NULL,
    changed bigint NOT NULL,
    error text,
    until_us bigint
);
CREATE INDEX fetch_run_source ON fetch_run (source_id, id);

CREATE TABLE scrape_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_id bigint NOT NULL,
    item_id bigint NOT NULL,
    task_id bigint NOT NULL,
    started_us bigint NOT NULL,
    ended_us bigint,
    status text NOT NULL DEFAULT 'running',
    http_status bigint,
    bytes bigint,
    error text
);
CREATE INDEX scrape_log_last ON scrape_log (source_id, started_us);
CREATE INDEX scrape_log_item ON scrape_log (item_id, id);
CREATE INDEX scrape_log_open ON scrape_log (task_id) WHERE ended_us IS NULL;

-- Whatever ends or revives a task (a settle, the end of its job, a retry), its items follow.
CREATE FUNCTION items_follow_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE item SET wake_us = NULL, error = CASE WHEN NEW.state = 'waiting' THEN NULL ELSE NEW.error END,
        state = CASE NEW.state
            WHEN 'waiting' THEN 'waiting'
            WHEN 'done' THEN CASE WHEN coalesce(NEW.bytes, 0) = 0 THEN 'partial' ELSE 'done' END
            ELSE 'failed' END
    WHERE id IN (SELECT NEW.item_id UNION ALL SELECT item_id FROM sharer WHERE sharer.task_id = NEW.id)
        AND task_id = NEW.id;
    -- A scrape in flight when its job ended has nothing to settle any more.
    UPDATE scrape_log SET ended_us = NEW.settled_us, status = 'interrupted'
    WHERE task_id = NEW.id AND ended_us IS NULL AND NEW.state = 'skipped' AND NEW.error = 'the job ended';
    RETURN NULL;
END $$;
CREATE TRIGGER items_follow_task AFTER UPDATE OF state ON task FOR EACH ROW
    WHEN (NEW.item_id IS NOT NULL AND NEW.state <> OLD.state) EXECUTE FUNCTION items_follow_task();

CREATE TABLE count (
    name text PRIMARY KEY COLLATE "C",
    value bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE secret (
    name text PRIMARY KEY COLLATE "C",
    value bytea NOT NULL
);

CREATE TABLE wiki (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    api text NOT NULL COLLATE "C" UNIQUE,
    site text,
    progress text,
    holder bigint,
    epoch bigint NOT NULL DEFAULT 0,
    -- Content that it brought first, as it is and packed.
    contents bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    packed_bytes bigint NOT NULL DEFAULT 0,
    created_us bigint NOT NULL
);

CREATE TABLE wiki_page (
    wiki_id bigint NOT NULL,
    page_id bigint NOT NULL,
    namespace bigint NOT NULL,
    title text NOT NULL,
    model text NOT NULL,
    redirect boolean NOT NULL,
    newest bigint NOT NULL,
    deleted boolean NOT NULL,
    whole boolean NOT NULL,
    -- Its past is another than what is kept of it.
    stale boolean NOT NULL DEFAULT false,
    -- A revision came whose parent was not there.
    suspect boolean NOT NULL DEFAULT false,
    -- The round in which it was last listed; 0 if it came up beside something else.
    round bigint NOT NULL,
    PRIMARY KEY (wiki_id, page_id)
);
CREATE INDEX wiki_page_title ON wiki_page (wiki_id, hash_of(title));

CREATE TABLE wiki_revision (
    wiki_id bigint NOT NULL,
    revision_id bigint NOT NULL,
    page_id bigint NOT NULL,
    parent_id bigint NOT NULL,
    at_us bigint NOT NULL,
    "user" text,
    user_id bigint NOT NULL,
    comment text,
    sha1 text,
    size bigint NOT NULL,
    minor boolean NOT NULL,
    -- 1 text, 2 comment, 4 user, 8 from administrators too.
    hidden bigint NOT NULL,
    tags text NOT NULL,
    PRIMARY KEY (wiki_id, revision_id)
);
CREATE INDEX wiki_revision_page ON wiki_revision (wiki_id, page_id, revision_id);

CREATE TABLE wiki_slot (
    wiki_id bigint NOT NULL,
    revision_id bigint NOT NULL,
    nth bigint NOT NULL,
    role text NOT NULL,
    model text NOT NULL,
    format text NOT NULL,
    content_id bigint,
    PRIMARY KEY (wiki_id, revision_id, nth)
);

-- The same text is kept once, whoever wrote it where.
CREATE TABLE wiki_content (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha1 bytea NOT NULL UNIQUE,
    size bigint NOT NULL,
    packing text NOT NULL,
    bytes bytea NOT NULL
);

CREATE TABLE wiki_file (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    wiki_id bigint NOT NULL,
    title text NOT NULL,
    at_us bigint NOT NULL,
    sha1 text,
    size bigint NOT NULL,
    mime text NOT NULL,
    url text,
    "user" text,
    comment text,
    superseded boolean NOT NULL,
    kept boolean NOT NULL DEFAULT false,
    problem text
);
CREATE UNIQUE INDEX wiki_file_version ON wiki_file (wiki_id, hash_of(title), at_us);
CREATE INDEX wiki_file_wanted ON wiki_file (wiki_id, id) WHERE NOT kept AND url IS NOT NULL;

-- A time in microseconds, as people read it. The end of time is infinity.
CREATE FUNCTION time_at(us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN us >= 9000000000000000000 THEN 'infinity'::timestamptz
        WHEN us > 250000000000000000 OR us < -60000000000000000 THEN NULL
        ELSE 'epoch'::timestamptz + us * interval '1 microsecond' END
$$;

-- What people query: the tables of the SQLite store, with their names and columns. Times are columns that end with `_at`.

CREATE VIEW activity AS
    SELECT domain_id, time_at(reported_us) AS reported_at, delay_ms, learned_ms,
        time_at(nullif(held_until_us, 0)) AS held_until_at, bound_by, success_streak, error_streak,
        time_at(nullif(last_us, 0)) AS last_at, last_outcome, last_status, waiting FROM domain_activity;

CREATE VIEW attempts AS
    SELECT task_id, time_at(started_us) AS started_at, took_us, outcome, status FROM logged_attempt
    UNION ALL
    SELECT id, time_at(last_us), last_took_us, last_outcome, status FROM task
    WHERE requests = 1 AND last_us IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM logged_attempt WHERE task_id = task.id AND started_us = task.last_us);

CREATE VIEW audit AS SELECT id, time_at(at_us) AS at, who, role, action, target, impact, result FROM audit_entry;

CREATE VIEW counts AS SELECT name, value FROM count;

CREATE VIEW domains AS
    SELECT id, domain, adaptive_delay_seconds, adaptive_delay_floor_seconds,
        time_at(floor_confirmed_us) AS floor_confirmed_at, time_at(server_until_us) AS server_until_at,
        time_at(server_stated_us) AS server_stated_at, pinned, time_at(paused_until_us) AS paused_until_at, holder,
        takes AS epoch, wanted_by, time_at(released_us) AS released_at, left_as, pace FROM domain;

CREATE VIEW fetch_runs AS
    SELECT id, source_id, time_at(started_us) AS started_at, time_at(ended_us) AS ended_at, status,
        time_at(window_end_us) AS window_end_at, cursor_in, cursor_out, http_status, found, new, changed, error,
        time_at(until_us) AS until_at FROM fetch_run;

CREATE VIEW fillers AS SELECT job_id, holder FROM filler;

CREATE VIEW history AS SELECT domain_id, time_at(until_us) AS until_at, samples FROM domain_history;

CREATE VIEW holders AS
    SELECT id, name, machine, time_at(since_us) AS since_at, time_at(until_us) AS until_at, time_at(died_us) AS died_at,
        status, time_at(told_us) AS told_at, sights FROM holder;

CREATE VIEW hooks AS SELECT item_id, holder FROM hook;

CREATE VIEW items AS
    SELECT id, source_id, identity, url, lead, title, time_at(published_us) AS published_at, state, content_hash,
        time_at(seen_us) AS seen_at, time_at(changed_us) AS changed_at, task_id, time_at(wake_us) AS wake_at,
        time_at(scraped_us) AS scraped_at, status, bytes, content_type, file, error, page_key, scraped_as FROM item;

CREATE VIEW jobs AS
    SELECT id, name, state, options, time_at(created_us) AS created_at, time_at(ended_us) AS ended_at, message, unread,
        swept, tasks, done, failed, skipped, rate_limited, retries, revival, time_at(pruned_us) AS pruned_at FROM job;

CREATE VIEW lanes AS SELECT id, job_id, domain_id, time_at(due_us) AS due_at, holder, given_up FROM lane;

CREATE VIEW looks AS
    SELECT domain_id, time_at(wished_us) AS wished_at, epoch, sight, time_at(seen_us) AS seen_at FROM look;

CREATE VIEW origins AS SELECT job_id, origin FROM origin;

CREATE VIEW permits AS
    SELECT domain_id, id, intent, time_at(granted_us) AS granted_at, time_at(until_us) AS until_at FROM permit;

CREATE VIEW robots AS
    SELECT origin, time_at(fetched_us) AS fetched_at, status, body, crawl_delay_us FROM robots_file;

CREATE VIEW scrape_logs AS
    SELECT id, source_id, item_id, task_id, time_at(started_us) AS started_at, time_at(ended_us) AS ended_at, status,
        http_status, bytes, error FROM scrape_log;

CREATE VIEW sharers AS SELECT task_id, item_id FROM sharer;

CREATE VIEW sources AS
    SELECT id, name, kind, url, listed_url, lead, enabled, scraping, auto_scrape, min_scrape_interval, config_json,
        cursor_json, time_at(added_us) AS added_at, failures, time_at(retry_us) AS retry_at, error, asked_by, epoch,
        time_at(requested_us) AS requested_at
    FROM source;

CREATE VIEW tasks AS
    SELECT id, job_id, lane_id, home_lane_id, url, url_key, lead, state, time_at(ready_us) AS ready_at, retries, hops,
        at_url, status, bytes, error, time_at(settled_us) AS settled_at, item_id, source_id, forgiven, requests,
        time_at(last_us) AS last_at, last_took_us, last_outcome, time_at(fetched_us) AS fetched_at, final_url,
        content_type, sha256, file, etag, last_modified, method, body, headers, bodiless, changed FROM task;

CREATE VIEW traffic AS
    SELECT time_at(from_us) AS from_at, success, answered, rate_limited, blocked, unavailable, server_error, timeout,
        network_error, retries, bytes FROM ten_seconds;

CREATE VIEW wikis AS
    SELECT id, api, site, progress, holder, contents, bytes, packed_bytes, time_at(created_us) AS created_at, epoch
    FROM wiki;

CREATE VIEW wiki_contents AS SELECT id, sha1, size, packing, bytes FROM wiki_content;

CREATE VIEW wiki_files AS
    SELECT id, wiki_id, title, time_at(at_us) AS at, sha1, size, mime, url, "user", comment, superseded, kept, problem
    FROM wiki_file;

CREATE VIEW wiki_pages AS
    SELECT wiki_id, page_id, namespace, title, model, redirect, newest, deleted, whole, stale, suspect, round
    FROM wiki_page;

CREATE VIEW wiki_revisions AS
    SELECT wiki_id, revision_id, page_id, parent_id, time_at(at_us) AS at, "user", user_id, comment, sha1, size, minor,
        hidden, tags FROM wiki_revision;

CREATE VIEW wiki_slots AS SELECT wiki_id, revision_id, nth, role, model, format, content_id FROM wiki_slot;

CREATE VIEW workers AS SELECT job_id, holder, time_at(told_us) AS told_at, index_bytes FROM worker;
