//! Opening a store in PostgreSQL: by several processes at once, in a schema that is not ours, and when the server refuses.

use comity_core::time::Span;
use comity_store::{Store, StoreError};

use super::server::Server;

/// A URL of the store that no other test uses.
fn fresh() -> String {
    Server::shared().fresh_url()
}

/// The schema that a URL names.
fn schema_of(url: &str) -> &str {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap()
}

fn open(url: &str) -> Result<std::sync::Arc<dyn Store>, StoreError> {
    comity_store::open(url)
}

#[test]
fn eight_that_open_an_empty_database_at_once_get_the_same_store() {
    let url = fresh();
    let start = std::sync::Barrier::new(8);
    let stores: Vec<_> = std::thread::scope(|scope| {
        let opened = || {
            start.wait();
            open(&url).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(opened)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let first = stores[0].identity();
    assert!(stores.iter().all(|store| store.identity().is_same(&first)));
    let again = comity_store::reopen(&url, &first).unwrap();
    assert!(again.identity().is_same(&first));
}

#[test]
fn a_store_is_created_only_by_those_who_may() {
    let url = fresh();
    let existing = || comity_store::open_existing(&url, Span::from_secs(1)).unwrap();
    assert!(existing().is_none());
    assert!(existing().is_none(), "looking created nothing");
    let store = open(&url).unwrap();
    assert!(existing().unwrap().identity().is_same(&store.identity()));
    let names = url.replace("postgres://", "postgresql://");
    assert!(open(&names).unwrap().identity().is_same(&store.identity()));
    assert!(comity_store::is_supported(&url) && comity_store::is_supported(&names));
}

#[test]
fn a_newer_schema_is_refused() {
    let url = fresh();
    drop(open(&url).unwrap());
    Server::shared().run_sql(&format!("INSERT INTO {}.schema_version VALUES (99)", schema_of(&url)));
    match open(&url).map(drop) {
        Err(error @ StoreError::Newer { found: 99, .. }) => {
            let message = error.to_string();
            assert!(message.contains("written by a newer version of Comity (schema 99;"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_schema_of_another_program_is_refused_and_left_alone() {
    let url = fresh();
    let schema = schema_of(&url);
    Server::shared().run_sql(&format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.theirs ()"));
    let message = refusal(&url);
    assert!(message.contains(&format!("the schema {schema} belongs to another program")), "{message}");
    // It is as it was.
    Server::shared().run_sql(&format!("DROP TABLE {schema}.theirs; DROP SCHEMA {schema}"));
}

/// B83: an empty store knows no deadlines.
#[test]
fn another_store_in_its_place_is_refused() {
    let (url, other) = (fresh(), fresh());
    let (store, another) = (open(&url).unwrap(), open(&other).unwrap());
    match comity_store::reopen(&other, &store.identity()).map(drop) {
        Err(StoreError::Another { .. }) => {}
        result => panic!("{result:?}"),
    }
    drop((store, another));
    let known = open(&url).unwrap().identity();
    Server::shared().run_sql(&format!("DROP SCHEMA {} CASCADE", schema_of(&url)));
    let gone = comity_store::reopen(&url, &known).map(drop).unwrap_err();
    assert!(gone.outage().is_some() && gone.to_string().contains("there is no store"), "{gone}");
    assert!(comity_store::open_existing(&url, Span::ZERO).unwrap().is_none(), "it was recreated");
}

/// B34: the message says what is wrong, without waiting for it to pass and without the password.
#[test]
fn a_server_that_refuses_is_unavailable() {
    let url = fresh();
    Server::shared().run_sql("CREATE ROLE guarded LOGIN PASSWORD 'correct'");
    let as_guarded = |password: &str| url.replace("postgres@", &format!("guarded:{password}@"));
    let port = url.split_once("127.0.0.1:").unwrap().1.split('/').next().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (refused, expected) in [
        (as_guarded("hunter2"), "password authentication failed for user"),
        (url.replace("postgres@", "guarded@"), "password missing"),
        (as_guarded("correct"), "permission denied for database postgres"),
        (url.replace(&format!(":{port}/"), &format!(":{closed}/")), "Connection refused"),
        (url.replace("sslmode=disable", "sslmode=require"), "server does not support TLS"),
        (url.replace("/postgres?", "/no_such_database?"), "database \"no_such_database\" does not exist"),
        (url.replace("postgres@", "nobody_here@"), "role \"nobody_here\" does not exist"),
    ] {
        let message = refusal(&refused);
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("hunter2") && !message.contains("correct"), "{message}");
    }
}

/// B34: the URL may contain a password.
#[test]
fn an_invalid_url_is_refused_without_repeating_it() {
    for (url, expected) in [
        (
            "mysql://user:hunter2@host/db",
            "\"mysql:…\": expected sqlite:PATH, memory: or postgres://HOST/DATABASE",
        ),
        ("postgres://user:hunter2@host/db?schema=A", "\"postgres://…\": expected schema=NAME"),
        (
            "postgres://user:hunter2@host:port/db",
            "\"postgres://…\": expected postgres://USER:PASSWORD@HOST:PORT",
        ),
    ] {
        let message = open(url).map(drop).unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains("hunter2"), "{message}");
    }
    assert!(!comity_store::is_supported("mysql://host/db"));
}

/// Why a store could not be opened.
fn refusal(url: &str) -> String {
    match open(url).map(drop) {
        Err(error @ StoreError::Unavailable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}
