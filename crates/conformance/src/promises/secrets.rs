//! Secrets are created once and shared by all processes on a store.

use crate::backend::Backend;

/// Many callers ask at once for a secret that does not exist yet, and all get the same one. Other secrets differ.
pub(crate) async fn a_secret_is_created_once_and_everybody_gets_it(backend: &dyn Backend) {
    let mut stores = Vec::new();
    for nth in 0..8_u8 {
        stores.push((nth, backend.store().await));
    }
    let asked = stores.iter().map(|(nth, store)| store.secret("permits".to_owned(), vec![*nth; 32]));
    let mut got = Vec::new();
    for asked in asked.collect::<Vec<_>>() {
        got.push(asked.await.unwrap());
    }
    assert!(got.iter().all(|secret| *secret == got[0] && secret.len() == 32), "{got:?}");
    let other = stores[0].1.secret("others".to_owned(), vec![9; 4]).await.unwrap();
    assert_eq!(other, [9; 4]);
}
