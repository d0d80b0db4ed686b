//! Hears from other processes that there is something to do: by a notification, and by looking every quarter of a second,
//! because notifications don't pass a transaction pooler. Behind one, looking is all.

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
            let listening = session.and_then(|session| listen(&session, &channel, &shared, &heard));
            // The outage is reported by those who have something to do.
            if listening.is_err() {
                std::thread::sleep(AGAIN);
            }
        }
    })?;
    Ok(())
}

/// Looks until the connection breaks or the store is closed.
fn listen(session: &Session, channel: &str, shared: &Weak<Shared>, heard: &Notify) -> Result<()> {
    let mut line = Line::default();
    loop {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let sql = format!("SELECT n, pg_backend_pid()::int8 FROM \"{}\".news", shared.location.schema);
        let rows = session.wait_for(session.client().query_typed(&sql, &[]))?;
        if let Some(row) = rows.first() {
            shared.news.store(row.get(0), Ordering::Relaxed);
            match line.seen(row.get(1)) {
                Some(Listen::Begin) => {
                    session.wait_for(session.client().batch_execute(&format!("LISTEN \"{channel}\"")))?;
                }
                // Notifications would go to whoever uses that connection next.
                Some(Listen::End) => {
                    session.wait_for(session.client().batch_execute(&format!("UNLISTEN \"{channel}\"")))?;
                }
                None => {}
            }
        }
        drop(shared);
        session.idle(LOOK_EVERY, heard);
    }
}

/// What is known of the way to the server: a transaction pooler answers from one of its connections, and then from another.
#[derive(Debug, Default)]
struct Line {
    /// The server process that answered last, and how often in a row.
    server: Option<(i64, u32)>,
    is_listening: bool,
    is_pooled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listen {
    Begin,
    End,
}

impl Line {
    /// What to do after this server process has answered.
    fn seen(&mut self, server: i64) -> Option<Listen> {
        let times = match self.server {
            Some((last, times)) if last == server => times.saturating_add(1),
            Some(_) => {
                self.is_pooled = true;
                1
            }
            None => 1,
        };
        self.server = Some((server, times));
        if self.is_pooled {
            // Sooner or later, on the connection that listens.
            return self.is_listening.then_some(Listen::End);
        }
        let is_time = !self.is_listening && times >= SURE;
        self.is_listening |= is_time;
        is_time.then_some(Listen::Begin)
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After this many answers of one server process, there is no pooler.
const SURE: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_pooler_is_noticed_and_not_listened_to() {
        let mut direct = Line::default();
        let heard: Vec<_> = (0..20).map(|_| direct.seen(7)).collect();
        assert_eq!(heard.iter().position(|listen| *listen == Some(Listen::Begin)), Some(7));
        assert_eq!(heard.iter().flatten().count(), 1);
        let mut pooled = Line::default();
        assert!([7, 7, 8, 7, 7, 7, 7, 7, 7, 7, 7].into_iter().all(|server| pooled.seen(server).is_none()));
        let mut late = Line::default();
        for _ in 0..8 {
            late.seen(7);
        }
        assert_eq!([late.seen(8), late.seen(7)], [Some(Listen::End); 2]);
    }
}
