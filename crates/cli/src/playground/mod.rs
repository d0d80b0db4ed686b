//! Sites on loopback that behave as sites do: strict, slow, flaky, with a limit that nobody tells. They count what is
//! asked of them, so that anybody can see who was polite.
//!
//! - `site`: how one behaves; pure
//! - `pages`: what they say
//! - here: the sockets. All sites are on one port, by their names (`strict.localhost`), and each on a port of its own,
//!   for programs that do not know such names.

mod pages;
mod site;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use comity::clock::Clock;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, IF_NONE_MATCH};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) use site::Tally;
use site::{Manner, Reply, Site};

/// Sites that answer until it is dropped.
pub(crate) struct Playground {
    shared: Arc<Shared>,
    /// Listens on a thread of its own, so that whoever asks does not slow it down.
    _stop: tokio::sync::oneshot::Sender<Infallible>,
}

struct Shared {
    clock: Clock,
    address: SocketAddr,
    sites: Vec<(Mutex<Site>, SocketAddr)>,
}

/// A site, and what it counted.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Where it is, by its name,
    pub(crate) url: String,
    /// and by its own port.
    pub(crate) port_url: String,
    pub(crate) tally: Tally,
}

impl Playground {
    /// Begins to listen at `listen` and on a port for each site: the ones above it, or free ones if it is 0.
    pub(crate) fn start(listen: SocketAddr) -> io::Result<Self> {
        let main = bind(listen)?;
        let above = |nth| if listen.port() == 0 { 0 } else { listen.port().saturating_add(nth) };
        let own = (1..=SITES.len() as u16).map(|nth| bind(SocketAddr::new(listen.ip(), above(nth))));
        let own = own.collect::<io::Result<Vec<_>>>()?;
        let mut sites = Vec::new();
        for ((name, about, manner), listener) in SITES.into_iter().zip(&own) {
            sites.push((Mutex::new(Site::new(name, about, manner)), listener.local_addr()?));
        }
        let shared = Arc::new(Shared { clock: Clock::new(), address: main.local_addr()?, sites });
        let (stop, stopped) = tokio::sync::oneshot::channel::<Infallible>();
        let serving = shared.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("comity-playground".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let mut listening = JoinSet::new();
                listening.spawn(accept(main, serving.clone(), None));
                for (nth, listener) in own.into_iter().enumerate() {
                    listening.spawn(accept(listener, serving.clone(), Some(nth)));
                }
                let _ = stopped.await;
            });
        })?;
        Ok(Self { shared, _stop: stop })
    }

    /// Where the list of sites is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Where a site is, by its name.
    pub(crate) fn url(&self, name: &str) -> String {
        self.shared.url(name)
    }

    /// The sites, with what they counted.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        self.shared.counted()
    }
}

impl Shared {
    fn url(&self, name: &str) -> String {
        format!("http://{name}.localhost:{}", self.address.port())
    }

    fn counted(&self) -> Vec<Counted> {
        let one = |(site, address): &(Mutex<Site>, SocketAddr)| {
            let site = lock(site);
            let (url, port_url) = (self.url(site.name), format!("http://{address}"));
            Counted { name: site.name, about: site.about, url, port_url, tally: site.tally() }
        };
        self.sites.iter().map(one).collect()
    }

    /// The site that a request is for, and where it is: the one of its port, or the one it names.
    fn find(&self, own: Option<usize>, host: &str) -> Option<(&Mutex<Site>, String)> {
        if let Some((site, address)) = own.and_then(|nth| self.sites.get(nth)) {
            return Some((site, format!("http://{address}")));
        }
        let name = host.split(':').next()?.strip_suffix(".localhost")?;
        let (site, _) = self.sites.iter().find(|(site, _)| lock(site).name == name)?;
        Some((site, self.url(name)))
    }

    /// The answer to a request; none when the site hangs up.
    async fn answer<T>(&self, own: Option<usize>, request: &Request<T>) -> Option<Response<Full<Bytes>>> {
        let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let host = text(HOST).unwrap_or_default();
        let Some((site, base)) = self.find(own, host) else {
            let page = pages::index(&self.counted());
            return Response::builder()
                .header(CONTENT_TYPE, "text/html; charset=utf-8")
                .body(page.into())
                .ok();
        };
        let now = self.clock.now();
        let reply = lock(site).answer(&base, request.uri().path(), text(IF_NONE_MATCH), now);
        let Reply { status, headers, body, after, hangs_up } = reply;
        tokio::time::sleep(after).await;
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(name, value);
        }
        response.body(body.into()).ok().filter(|_| !hangs_up)
    }
}

fn lock(site: &Mutex<Site>) -> MutexGuard<'_, Site> {
    site.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let bound = std::net::TcpListener::bind(address);
    let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>, own: Option<usize>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // Too many files are open, say: a moment later there may be room.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                // An error makes hyper close the connection without a word, which is what a site that hangs up does.
                async move { shared.answer(own, &request).await.ok_or("hung up") }
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            let connection = server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
    }
}

/// The sites.
const SITES: [(&str, &str, Manner); 9] = [
    ("strict", "a site that answers 10 requests and then says 429 with Retry-After: 5", Manner::Strict),
    ("hidden", "a site with a limit that it tells nobody: one request in 1.5 s", Manner::Hidden),
    ("slow", "a site that takes 2 s for a page", Manner::Slow),
    ("flaky", "a site that says 503 or hangs up now and then", Manner::Flaky),
    ("robots", "a site whose robots.txt asks for 3 s between requests and forbids /private/", Manner::Robots),
    ("harbour", "a site with a feed, /feed.xml", Manner::Feed),
    ("garden", "a site without any manners of its own", Manner::Calm),
    ("library", "another one", Manner::Calm),
    ("museum", "and one more", Manner::Calm),
];
