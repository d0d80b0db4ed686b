//! Transactions of other programs that keep the tables from being vacuumed.

use std::io::Write;
use std::time::Duration;

use comity_core::time::Span;

use super::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn an_old_transaction_of_another_program_is_reported_with_its_owner() {
    let url = tokio::task::spawn_blocking(|| Server::shared().fresh_url()).await.unwrap();
    let store = tokio::task::spawn_blocking(move || comity_store::open(&url)).await.unwrap().unwrap();
    let mut psql = Server::shared().psql();
    let sql = "SET application_name = 'forgotten'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;\n";
    psql.stdin.as_mut().unwrap().write_all(sql.as_bytes()).unwrap();
    let old = loop {
        // Other tests run transactions too, but none for as long as this one will.
        match store.old_transaction(Span::from_millis(1_500)).await.unwrap() {
            Some(old) if old.owner.contains("forgotten") => break old,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(old.owner.starts_with("postgres, pid "), "{old:?}");
    assert!(old.age >= Span::from_millis(1_500), "{old:?}");
    assert_eq!(store.old_transaction(Span::from_hours(9)).await.unwrap(), None);
    drop(psql.stdin.take());
    psql.wait().unwrap();
    loop {
        match store.old_transaction(Span::ZERO).await.unwrap() {
            Some(old) if old.owner.contains("forgotten") => {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
            _ => break,
        }
    }
}
