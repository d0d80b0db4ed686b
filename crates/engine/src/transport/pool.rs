//! Connections at rest: HTTP/1.1 ones until somebody takes them, HTTP/2 ones shared by all.
//!
//! The key is an [`Origin`], which holds the lead: what a remote answer led to never travels on a connection the
//! operator's own URLs use (B76). Whether a proxy is used follows from the origin, so that those never mix either.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::client::conn::http2;
use tokio::time::{Instant, sleep};

use super::Settings;
use super::connection::{Connection, Sender};
use super::origin::{Origin, Route};

pub(super) struct Pool {
    rest: Mutex<Rest>,
    idle_max_per_host: usize,
    idle_max: usize,
    idle_timeout: Duration,
}

#[derive(Default)]
struct Rest {
    places: HashMap<Arc<Origin>, Place>,
    idle: usize,
    sweeping: bool,
}

#[derive(Default)]
struct Place {
    /// The longest at rest first.
    idle: Vec<(Connection, Instant)>,
    shared: Option<Shared>,
}

struct Shared {
    sender: http2::SendRequest<http_body_util::Full<bytes::Bytes>>,
    /// Every stream under way holds this too, so that its count tells how many there are.
    route: Arc<Route>,
    used_at: Instant,
}

impl Pool {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            rest: Mutex::default(),
            idle_max_per_host: settings.idle_max_per_host,
            idle_max: settings.idle_max.min(settings.connections_max),
            idle_timeout: settings.idle_timeout.into(),
        }
    }

    /// A connection to `origin` that can take a request, if there is one.
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
        let mut rest = self.lock();
        if rest.idle >= self.idle_max || self.idle_max_per_host == 0 {
            return;
        }
        let place = rest.place(&connection.route.origin);
        let full = place.idle.len() >= self.idle_max_per_host;
        if full {
            place.idle.remove(0);
        }
        place.idle.push((connection, Instant::now()));
        rest.idle += usize::from(!full);
        self.keep_sweeping(&mut rest);
    }

    /// Lets others share a new HTTP/2 connection. If somebody was faster, theirs is used and the new one dropped.
    pub(super) fn share(self: &Arc<Self>, connection: Connection) -> Connection {
        let Sender::Many(sender) = &connection.sender else { return connection };
        let now = Instant::now();
        let mut rest = self.lock();
        let place = rest.place(&connection.route.origin);
        if let Some(theirs) = place.share(now) {
            return theirs;
        }
        let route = Arc::clone(&connection.route);
        place.shared = Some(Shared { sender: sender.clone(), route, used_at: now });
        self.keep_sweeping(&mut rest);
        connection
    }

    /// Ends a connection that is of no more use, for everybody who shares it. Returns where it led.
    pub(super) fn forget(&self, connection: Connection) -> Arc<Origin> {
        let origin = Arc::clone(&connection.route.origin);
        if let Some(place) = self.lock().places.get_mut(&origin) {
            place.shared.take_if(|shared| Arc::ptr_eq(&shared.route, &connection.route));
        }
        origin
    }

    /// Ends the connection that has been idle for longest, so that another one can be opened.
    pub(super) fn close_oldest(&self) {
        self.lock().drop_oldest();
    }

    /// Ends all idle connections.
    pub(super) fn close_idle(&self) {
        let mut rest = self.lock();
        for place in rest.places.values_mut() {
            place.idle.clear();
            place.shared.take_if(|shared| shared.streams() == 0);
        }
        rest.idle = 0;
    }

    fn pick(&self, origin: &Origin, now: Instant) -> Option<Connection> {
        let mut rest = self.lock();
        let place = rest.places.get_mut(origin)?;
        if let Some(connection) = place.share(now) {
            return Some(connection);
        }
        let (connection, since) = place.idle.pop()?;
        rest.idle -= 1;
        // The last one in is the youngest: if it is too old, the sweep will find them all.
        (now - since < self.idle_timeout).then_some(connection)
    }

    /// Sees to it that idle connections end in time even if nobody asks for them again.
    fn keep_sweeping(self: &Arc<Self>, rest: &mut Rest) {
        if !rest.sweeping {
            rest.sweeping = true;
            tokio::spawn(sweep(Arc::downgrade(self), self.idle_timeout));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rest> {
        // A panic while the lock is held leaves at worst a wrong count of idle connections.
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rest {
    fn place(&mut self, origin: &Arc<Origin>) -> &mut Place {
        // Nearly always it is there, and then the key need not be cloned.
        if !self.places.contains_key(origin) {
            self.places.insert(Arc::clone(origin), Place::default());
        }
        self.places.get_mut(origin).expect("a place that was just made")
    }

    fn drop_oldest(&mut self) {
        let since = |place: &Place| {
            let shared = place.shared.as_ref().filter(|shared| shared.streams() == 0);
            let idle = place.idle.first().map(|(_, since)| *since);
            idle.into_iter().chain(shared.map(|shared| shared.used_at)).min()
        };
        let dated = self.places.values_mut().filter_map(|place| Some((since(place)?, place)));
        let Some((since, place)) = dated.min_by_key(|(since, _)| *since) else { return };
        if place.idle.first().is_some_and(|(_, at)| *at == since) {
            place.idle.remove(0);
            self.idle -= 1;
        } else {
            place.shared = None;
        }
    }

    fn drop_older_than(&mut self, idle_timeout: Duration, now: Instant) {
        let young = |since: Instant| now - since < idle_timeout;
        self.places.retain(|_, place| {
            place.idle.retain(|(_, since)| young(*since));
            place.shared.take_if(|shared| shared.streams() == 0 && !young(shared.used_at));
            !place.idle.is_empty() || place.shared.is_some()
        });
        self.idle = self.places.values().map(|place| place.idle.len()).sum();
    }
}

impl Place {
    /// A share in the HTTP/2 connection, if there is one that lives and has room.
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

async fn sweep(pool: Weak<Pool>, idle_timeout: Duration) {
    loop {
        sleep(idle_timeout.max(SWEEP_EVERY_MIN)).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut rest = pool.lock();
        rest.drop_older_than(idle_timeout, Instant::now());
        if rest.places.is_empty() {
            rest.sweeping = false;
            return;
        }
    }
}

/// What servers commonly allow.
const STREAMS_MAX: usize = 100;
/// Even a timeout of nothing must not keep a core busy.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(100);
