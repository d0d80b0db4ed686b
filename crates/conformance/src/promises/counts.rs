//! Counters are summed over all processes.

use crate::backend::Backend;

/// B73
pub(crate) async fn counts_of_many_processes_are_summed(backend: &dyn Backend) {
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(backend.store().await);
    }
    let adding: Vec<_> =
        stores.iter().map(|store| store.add_counts(vec![("a".to_owned(), 2), ("b".to_owned(), 1)])).collect();
    for added in adding {
        added.await.unwrap();
    }
    stores[0].add_counts(vec![("a".to_owned(), u64::from(u32::MAX))]).await.unwrap();
    let mut counts = stores[1].counts().await.unwrap();
    counts.sort();
    assert_eq!(counts, [("a".to_owned(), 8 + u64::from(u32::MAX)), ("b".to_owned(), 4)]);
}
