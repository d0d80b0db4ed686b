//! Who changed what.

use comity_store::audit::{AuditEntry, NewAuditEntry};
use comity_store::retention::{PruneFrom, Pruned};

use crate::backend::Backend;
use crate::process::{Process, at};

fn change(nth: usize) -> NewAuditEntry {
    NewAuditEntry {
        who: "ops".to_owned(),
        role: "admin".to_owned(),
        action: "cancel".to_owned(),
        target: format!("job {nth} <ü>"),
        impact: "skips 1,240 waiting tasks".to_owned(),
        result: "done".to_owned(),
    }
}

pub(crate) async fn changes_are_listed_newest_first(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    assert_eq!(one.store.page_audit(None, 9).await.unwrap(), []);
    for nth in 0..5 {
        let process = if nth % 2 == 0 { &one } else { &other };
        process.store.add_audit(change(nth), at(nth as i64)).await.unwrap();
    }
    let mut seen: Vec<AuditEntry> = Vec::new();
    loop {
        let page = one.store.page_audit(seen.last().map(|last| last.id), 2).await.unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page);
    }
    let shown: Vec<_> = seen.iter().map(|seen| (seen.at, seen.entry.clone())).collect();
    assert_eq!(shown, [4, 3, 2, 1, 0].map(|nth| (at(nth as i64), change(nth))));
}

pub(crate) async fn old_changes_are_deleted(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    for nth in 0..5 {
        one.store.add_audit(change(nth), at(nth as i64)).await.unwrap();
    }
    assert_eq!(one.store.count_prunable(at(3)).await.unwrap(), Pruned { changes: 3, ..Pruned::default() });
    let (mut pruned, mut from) = (Pruned::default(), Some(PruneFrom::default()));
    while let Some(next) = from {
        let some;
        (some, from) = one.store.prune(next, at(3), 2).await.unwrap();
        pruned += some;
    }
    assert_eq!(pruned, Pruned { changes: 3, ..Pruned::default() });
    let left = one.store.page_audit(None, 9).await.unwrap();
    assert_eq!(left.iter().map(|left| left.at).collect::<Vec<_>>(), [at(4), at(3)]);
}
