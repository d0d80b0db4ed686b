//! Hears from other processes that there is something to do: by a notification, and by looking every quarter of a second,
//! because notifications don't pass a transaction pooler.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::connection::Session;
use super::failure::Result;
use super::lanes::channel_of;
use super::shared::Shared;

/// Starts the thread that listens. It ends with the store.
pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new().name("comity-news".to_owned()).spawn(move || {
        while let Some(location) = shared.upgrade().map(|shared| shared.location.clone()) {
            let heard = Arc::new(Notify::new());
            let notify = heard.clone();
            let session = Session::listen(&location, PATIENCE, move || notify.notify_one());
            let channel = channel_of(&location.schema);
            let listening = session.and_then(|session| {
                session.wait_for(session.client().batch_execute(&format!("LISTEN \"{channel}\"")))?;
                listen(&session, &shared, &heard)
            });
            // The outage is reported by those who have something to do.
            if listening.is_err() {
                std::thread::sleep(AGAIN);
            }
        }
    })?;
    Ok(())
}

/// Looks until the connection breaks or the store is closed.
fn listen(session: &Session, shared: &Weak<Shared>, heard: &Notify) -> Result<()> {
    loop {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let sql = format!("SELECT n FROM \"{}\".news", shared.location.schema);
        let rows = session.wait_for(session.client().query_typed(&sql, &[]))?;
        if let Some(row) = rows.first() {
            shared.news.store(row.get(0), Ordering::Relaxed);
        }
        drop(shared);
        session.idle(LOOK_EVERY, heard);
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(250);
