//! Tests whose error it is, what happens to a failed commit, and how often statements are compiled.

use rusqlite::StatementStatus::RePrepare;
use rusqlite::{Connection, ErrorCode, ffi, params};

use super::*;
use crate::sqlite::opening::initialize;

/// A writer thread's state, to be run on the test's own thread.
fn run(commit: fn(&Connection) -> rusqlite::Result<()>) -> WriterThread {
    let mut connection = Connection::open_in_memory().unwrap();
    let identity = initialize(&mut connection, &Location::Memory, None, "").unwrap();
    WriterThread {
        connection,
        is_open: true,
        has_worked: false,
        open_store: Arc::new(OpenStore::new(Location::Memory, identity, None)),
        lost: Vec::new(),
        cache: Cache::default(),
        patience: Patience::new(Span::from_secs(10)),
        availability: Arc::default(),
        gave_up: None,
        stamp: 7,
        before_commit: None,
        commit,
    }
}

fn count(tx: &mut Tx<'_>, name: &str, value: i64) -> rusqlite::Result<()> {
    tx.sql.execute("INSERT INTO counts (name, value) VALUES (?1, ?2)", params![name, value]).map(drop)
}

fn counted(run: &WriterThread) -> String {
    let sql = "SELECT coalesce(group_concat(name, ' '), '') FROM (SELECT name FROM counts ORDER BY name)";
    run.connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// B83: whatever the error of one caller, the others are committed.
#[test]
fn an_error_of_one_caller_fails_that_caller_alone() {
    type Bad = fn(&mut Tx<'_>) -> rusqlite::Result<()>;
    let kinds: [(&str, Bad); 7] = [
        ("a duplicate value", |tx| count(tx, "first", 1)),
        ("an unknown column", |tx| tx.sql.execute_batch("SELECT nothing FROM counts")),
        ("a function that fails", |tx| tx.sql.execute_batch("SELECT json('{'), abs(-9223372036854775808)")),
        ("an overflow", |tx| {
            tx.sql.query_row(
                "SELECT sum(x) FROM (SELECT 9223372036854775807 x UNION ALL SELECT 1)",
                [],
                |_| Ok(()),
            )
        }),
        ("a row that cannot be read", |tx| {
            tx.sql.query_row("SELECT 'x'", [], |row| row.get::<_, i64>(0)).map(drop)
        }),
        ("too many values", |tx| tx.sql.execute("SELECT 1", [1]).map(drop)),
        ("a panic", |_| panic!("on purpose")),
    ];
    for (kind, bad) in kinds {
        let mut run = run(super::commit);
        let (first, mut one) = work_item(|tx| count(tx, "first", 1));
        let (second, mut two) = work_item(move |tx| count(tx, "undone", 2).and_then(|()| bad(tx)));
        let (third, mut three) = work_item(|tx| count(tx, "third", 3));
        let _ = run.commit(vec![first, second, third], false);
        assert!(one.try_recv().unwrap().is_ok(), "{kind}");
        let error = two.try_recv().unwrap().unwrap_err();
        assert!(matches!(error, StoreError::Rejected { .. }), "{kind}: {error:?}");
        assert!(three.try_recv().unwrap().is_ok(), "{kind}");
        assert_eq!(counted(&run), "first third", "{kind}");
        let (next, mut four) = work_item(|tx| count(tx, "next", 4));
        let _ = run.commit(vec![next], false);
        assert!(four.try_recv().unwrap().is_ok(), "{kind}");
        let commits =
            run.connection.query_row("SELECT commits FROM identity", [], |row| row.get::<_, i64>(0));
        assert_eq!(commits.unwrap(), 2, "{kind}: every transaction is counted");
    }
}

/// B83: a failing disk concerns everybody, and each caller may retry.
#[test]
fn a_database_error_concerns_every_caller() {
    let mut run = run(super::commit);
    let (first, mut one) = work_item(|tx| count(tx, "first", 1));
    let (second, mut two) = work_item(|_| Err::<(), _>(broken()));
    let _ = run.commit(vec![first, second], false);
    for error in [one.try_recv().unwrap(), two.try_recv().unwrap()] {
        assert!(matches!(error, Err(StoreError::Unavailable { .. })), "{error:?}");
    }
    assert_eq!(counted(&run), "");
}

/// B83: a commit that failed may have succeeded after all; the database knows.
#[test]
fn a_commit_whose_answer_was_lost_is_looked_up() {
    let outcome = |commit: fn(&Connection) -> rusqlite::Result<()>| {
        let mut run = run(commit);
        let (work, mut answer) = work_item(|tx| count(tx, "it", 1));
        let _ = run.commit(vec![work], false);
        let answer = match answer.try_recv().unwrap() {
            Ok(()) => "done",
            Err(StoreError::Unavailable { .. }) => "not done",
            Err(StoreError::Uncertain { .. }) => "not known",
            Err(other) => panic!("{other:?}"),
        };
        (answer, counted(&run))
    };
    assert_eq!(outcome(super::commit), ("done", "it".to_owned()));
    assert_eq!(outcome(|_| Err(broken())), ("not done", String::new()), "it is rolled back");
    let lost: fn(&Connection) -> _ = |sql| sql.execute_batch("COMMIT").and_then(|()| Err(broken()));
    assert_eq!(outcome(lost), ("done", "it".to_owned()));
    let undone: fn(&Connection) -> _ = |sql| sql.execute_batch("ROLLBACK").and_then(|()| Err(broken()));
    assert_eq!(outcome(undone), ("not done", String::new()));
    // Another process committed right after it, and then a third one.
    let others: fn(&Connection) -> _ = |sql| {
        let more = "UPDATE identity SET commits = commits + 1, stamp = 1";
        sql.execute_batch(&format!("COMMIT; {more}; {more}")).and_then(|()| Err(broken()))
    };
    assert_eq!(outcome(others), ("not known", "it".to_owned()));
    let other_instead: fn(&Connection) -> _ = |sql| {
        let other = "UPDATE identity SET commits = commits + 1, stamp = 1";
        sql.execute_batch(&format!("ROLLBACK; {other}")).and_then(|()| Err(broken()))
    };
    assert_eq!(outcome(other_instead), ("not done", String::new()));
}

/// B83: what was requested while the disk was full is done once there is room, and only once.
#[test]
fn a_full_disk_is_waited_for() {
    let mut run = run(super::commit);
    let mut left = 2;
    let (first, mut one) = work_item(|tx| count(tx, "first", 1));
    let (bad, mut rejected) = work_item(|tx| count(tx, "first", 1));
    let (second, mut two) = work_item(move |tx| {
        count(tx, "second", 2)?;
        left -= 1;
        if left >= 0 {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None))
        } else {
            Ok(())
        }
    });
    let _ = run.commit(vec![first, bad, second], false);
    assert!(one.try_recv().unwrap().is_ok() && two.try_recv().unwrap().is_ok());
    assert!(matches!(rejected.try_recv().unwrap(), Err(StoreError::Rejected { .. })), "answered once");
    assert_eq!(counted(&run), "first second");

    run.patience.set(Span::from_secs(1));
    let full = || rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
    let (work, mut answer) = work_item(move |tx| count(tx, "third", 3).and_then(|()| Err::<(), _>(full())));
    let _ = run.commit(vec![work], false);
    assert!(matches!(answer.try_recv().unwrap(), Err(StoreError::Unavailable { .. })), "not forever");
    assert_eq!(counted(&run), "first second");
}

/// Reading writes nothing: otherwise other processes would read again and wake us.
#[test]
fn a_read_leaves_no_stamp() {
    let mut run = run(super::commit);
    let (work, mut answer) =
        work_item(|tx| tx.sql.query_row("SELECT count(*) FROM counts", [], |row| row.get::<_, i64>(0)));
    let before = run.connection.total_changes();
    let _ = run.commit(vec![work], false);
    assert_eq!(answer.try_recv().unwrap().unwrap(), 0_i64);
    assert_eq!(run.connection.total_changes(), before);
}

/// Statements were recompiled for every new value, which took a fifth of the time of a fetch.
#[test]
fn a_statement_is_compiled_once() {
    let run = run(super::commit);
    let sql = &run.connection;
    sql.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
        INSERT INTO tasks (job_id, lane_id, url, url_key, lead, ready_us) SELECT 1, i % 7, 'u' || i, i, 'listed', i FROM n;
        ANALYZE",
    )
    .unwrap();
    let query = "SELECT id FROM tasks WHERE lane_id = ?1 AND state = 'waiting' AND ready_us > ?2 ORDER BY ready_us LIMIT 5";
    let compiled = |sql: &Connection| {
        let mut statement = sql.prepare(query).unwrap();
        for nth in 0..50_i64 {
            let found = statement.query_map([nth % 7, nth * 40], |row| row.get::<_, i64>(0)).unwrap();
            assert_eq!(found.count(), 5);
        }
        statement.get_status(RePrepare)
    };
    assert_eq!(compiled(sql), 0);
    sql.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, false).unwrap();
    assert!(compiled(sql) >= 49, "without it, statements are recompiled");
}

fn broken() -> rusqlite::Error {
    assert_eq!(ffi::Error::new(ffi::SQLITE_IOERR).code, ErrorCode::SystemIoFailure);
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR), None)
}
