//! What people query has the names that it has in SQLite.

use std::collections::{BTreeMap, BTreeSet};

use super::server::Server;
use crate::file::TestFile;

/// Tables and their columns.
type Columns = BTreeMap<String, BTreeSet<String>>;

/// Every table of an SQLite store can be queried here, with the same columns; times are called `…_at`.
#[test]
fn views_have_the_names_of_the_tables_in_sqlite() {
    let url = Server::shared().fresh_url();
    drop(comity_store::open(&url).unwrap());
    let ours = columns_of(&url);
    for (table, columns) in columns_in_sqlite() {
        // Secrets are not for people; these are about files of SQLite, or part of a view.
        if ["identity", "timeline", "secrets", "logged_attempts"].contains(&&*table) {
            continue;
        }
        let Some(here) = ours.get(&table) else { panic!("there is no view called {table}") };
        for column in &columns {
            assert!(here.contains(column), "{table}.{column} is missing: {here:?}");
        }
    }
    let expected = "bigint timestamp with time zone";
    let types = |column: &str| {
        let schema = schema_of(&url);
        Server::shared().run_sql(&format!(
            "SELECT data_type FROM information_schema.columns
            WHERE table_schema = '{schema}' AND table_name = 'tasks' AND column_name = '{column}'"
        ))
    };
    assert_eq!(format!("{} {}", types("id").trim(), types("ready_at").trim()), expected);
}

/// As in docs/jobs.md and docs/sources.md.
#[test]
fn documented_queries_work() {
    let url = Server::shared().fresh_url();
    drop(comity_store::open(&url).unwrap());
    let schema = schema_of(&url);
    Server::shared().run_sql(&format!(
        "SET search_path = {schema};
        SELECT state, count(*) FROM tasks GROUP BY state;
        SELECT url, error FROM tasks WHERE state = 'failed';
        SELECT domain, adaptive_delay_seconds, server_until_at FROM domains;
        SELECT url, outcome, attempts.status, took_us / 1000 AS ms FROM attempts JOIN tasks ON tasks.id = task_id;
        SELECT name, url, cursor_json::json ->> 'last_fetch_at', failures, error FROM sources;
        SELECT started_at, status, found, new, error FROM fetch_runs WHERE source_id = 1;
        SELECT title, state, file FROM items WHERE source_id = 1 ORDER BY id DESC"
    ));
}

fn schema_of(url: &str) -> &str {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap()
}

/// The columns of all tables and views of the schema.
fn columns_of(url: &str) -> Columns {
    let listed = Server::shared().run_sql(&format!(
        "SELECT table_name || ' ' || column_name FROM information_schema.columns WHERE table_schema = '{}'",
        schema_of(url)
    ));
    let mut columns = Columns::new();
    for (table, column) in listed.lines().filter_map(|line| line.split_once(' ')) {
        columns.entry(table.to_owned()).or_default().insert(column.to_owned());
    }
    columns
}

/// The columns of all tables and views of an SQLite store, as they are called here.
fn columns_in_sqlite() -> Columns {
    let file = TestFile::new();
    drop(file.open());
    let connection = file.connect();
    let sql = "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
        WHERE tables.type IN ('table', 'view') AND tables.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut columns = Columns::new();
    for (table, column) in rows.map(|row: rusqlite::Result<(String, String)>| row.unwrap()) {
        // How a process proves that it lives is a matter of files.
        if (&*table, &*column) != ("holders", "proof") {
            columns.entry(table).or_default().insert(name_here(&column));
        }
    }
    columns
}

/// A column that is a time ends with `_at`; spans stay what they are.
fn name_here(column: &str) -> String {
    match column.strip_suffix("_us") {
        Some("at") => "at".to_owned(),
        Some(time) if !["took", "last_took", "crawl_delay"].contains(&time) => format!("{time}_at"),
        _ => column.to_owned(),
    }
}
