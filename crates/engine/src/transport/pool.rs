//! The connection pool: idle HTTP/1.1 connections, and HTTP/2 connections shared by all.
//!
//! The key is an [`Origin`], which includes the lead: requests that a remote response led to never use a connection of
//! the operator's own URLs. It also determines the proxy, so proxied and direct connections never mix.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::client::conn::http2;
use tokio::time::{Instant, sleep};

use super::Settings;
use super::connection::{Connection, Sender};
use super::origin::{Origin, Route};
use super::relay::Outbound;
use crate::FastMap;

pub(super) struct ConnectionPool {
    connections: Mutex<Connections>,
    idle_max_per_host: usize,
    idle_max: usize,
    idle_timeout: Duration,
}

#[derive(Default)]
struct Connections {
    origins: FastMap<Arc<Origin>, OriginConnections>,
    idle: usize,
    sweeping: bool,
}

#[derive(Default)]
struct OriginConnections {
    /// Idle connections, the oldest first.
    idle: Vec<(Connection, Instant)>,
    shared: Option<Shared>,
}

struct Shared {
    sender: http2::SendRequest<Outbound>,
    /// Every open stream holds a reference too, so the reference count shows how many are open.
    route: Arc<Route>,
    used_at: Instant,
}

impl ConnectionPool {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            connections: Mutex::default(),
            idle_max_per_host: settings.idle_max_per_host,
            idle_max: settings.idle_max.min(settings.connections_max),
            idle_timeout: settings.idle_timeout.into(),
        }
    }

    /// A usable connection to `origin`, if there is one.
    pub(super) async fn take(&self, origin: &Origin) -> Option<Connection> {
        loop {
            let mut connection = self.pick(origin, Instant::now())?;
            if connection.is_usable().await {
                return Some(connection);
            }
            self.forget(connection);
        }
    }

    /// Keeps a connection for the next request, if there is room.
    pub(super) fn put(self: &Arc<Self>, connection: Connection) {
        if let Sender::Many(_) = connection.sender {
            return;
        }
        let mut connections = self.lock();
        if connections.idle >= self.idle_max || self.idle_max_per_host == 0 {
            return;
        }
        let entry = connections.entry(&connection.route.origin);
        let full = entry.idle.len() >= self.idle_max_per_host;
        if full {
            entry.idle.remove(0);
        }
        entry.idle.push((connection, Instant::now()));
        connections.idle += usize::from(!full);
        self.keep_sweeping(&mut connections);
    }

    /// Shares a new HTTP/2 connection. If another one was opened at the same time, that one is used and the new one
    /// dropped.
    pub(super) fn share(self: &Arc<Self>, connection: Connection) -> Connection {
        let Sender::Many(sender) = &connection.sender else { return connection };
        let now = Instant::now();
        let mut connections = self.lock();
        let entry = connections.entry(&connection.route.origin);
        if let Some(theirs) = entry.share(now) {
            return theirs;
        }
        let route = Arc::clone(&connection.route);
        entry.shared = Some(Shared { sender: sender.clone(), route, used_at: now });
        self.keep_sweeping(&mut connections);
        connection
    }

    /// Removes an unusable connection, also for those who share it. Returns its origin.
    pub(super) fn forget(&self, connection: Connection) -> Arc<Origin> {
        let origin = Arc::clone(&connection.route.origin);
        if let Some(entry) = self.lock().origins.get_mut(&origin) {
            entry.shared.take_if(|shared| Arc::ptr_eq(&shared.route, &connection.route));
        }
        origin
    }

    /// Closes the connection that has been idle for longest, to make room for another.
    pub(super) fn close_oldest(&self) {
        self.lock().drop_oldest();
    }

    /// Closes all idle connections.
    pub(super) fn close_idle(&self) {
        let mut connections = self.lock();
        for entry in connections.origins.values_mut() {
            entry.idle.clear();
            entry.shared.take_if(|shared| shared.streams() == 0);
        }
        connections.idle = 0;
    }

    fn pick(&self, origin: &Origin, now: Instant) -> Option<Connection> {
        let mut connections = self.lock();
        let entry = connections.origins.get_mut(origin)?;
        if let Some(connection) = entry.share(now) {
            return Some(connection);
        }
        let (connection, since) = entry.idle.pop()?;
        connections.idle -= 1;
        // This is the youngest one. If it is too old, the sweep will find them all.
        (now - since < self.idle_timeout).then_some(connection)
    }

    /// Makes sure that idle connections are closed in time even if nobody asks for them again.
    fn keep_sweeping(self: &Arc<Self>, connections: &mut Connections) {
        if !connections.sweeping {
            connections.sweeping = true;
            tokio::spawn(sweep(Arc::downgrade(self), self.idle_timeout));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        // A panic while the lock is held leaves at worst a wrong count of idle connections.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    fn entry(&mut self, origin: &Arc<Origin>) -> &mut OriginConnections {
        self.origins.entry(Arc::clone(origin)).or_default()
    }

    fn drop_oldest(&mut self) {
        let since = |entry: &OriginConnections| {
            let shared = entry.shared.as_ref().filter(|shared| shared.streams() == 0);
            let idle = entry.idle.first().map(|(_, since)| *since);
            idle.into_iter().chain(shared.map(|shared| shared.used_at)).min()
        };
        let dated = self.origins.values_mut().filter_map(|entry| Some((since(entry)?, entry)));
        let Some((since, entry)) = dated.min_by_key(|(since, _)| *since) else { return };
        if entry.idle.first().is_some_and(|(_, at)| *at == since) {
            entry.idle.remove(0);
            self.idle -= 1;
        } else {
            entry.shared = None;
        }
    }

    fn drop_older_than(&mut self, idle_timeout: Duration, now: Instant) {
        let young = |since: Instant| now - since < idle_timeout;
        self.origins.retain(|_, entry| {
            entry.idle.retain(|(_, since)| young(*since));
            entry.shared.take_if(|shared| shared.streams() == 0 && !young(shared.used_at));
            !entry.idle.is_empty() || entry.shared.is_some()
        });
        self.idle = self.origins.values().map(|entry| entry.idle.len()).sum();
    }
}

impl OriginConnections {
    /// The shared HTTP/2 connection, if it is alive and has room for another stream.
    fn share(&mut self, now: Instant) -> Option<Connection> {
        self.shared.take_if(|shared| shared.sender.is_closed());
        let shared = self.shared.as_mut().filter(|shared| shared.streams() < STREAMS_MAX)?;
        shared.used_at = now;
        let sender = Sender::Many(shared.sender.clone());
        Some(Connection { sender, route: Arc::clone(&shared.route) })
    }
}

impl Shared {
    fn streams(&self) -> usize {
        Arc::strong_count(&self.route) - 1
    }
}

async fn sweep(pool: Weak<ConnectionPool>, idle_timeout: Duration) {
    loop {
        sleep(idle_timeout.max(SWEEP_EVERY_MIN)).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut connections = pool.lock();
        connections.drop_older_than(idle_timeout, Instant::now());
        if connections.origins.is_empty() {
            connections.sweeping = false;
            return;
        }
    }
}

/// The number of streams that servers commonly allow.
const STREAMS_MAX: usize = 100;
/// The minimum time between sweeps, so that an idle timeout of zero doesn't keep a CPU core busy.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(100);
