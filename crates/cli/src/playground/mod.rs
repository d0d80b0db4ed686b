//! Test sites on loopback that behave like real ones: strict, slow, flaky, with a hidden limit. They count requests,
//! including those that came too early.
//!
//! - `site`: how a site behaves; no IO
//! - `pages`: the content of the sites
//! - here: the sockets. All sites share one port, by name (`strict.localhost`), and each also has its own port, for
//!   programs that can't resolve such names.

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
use site::{Behavior, Reply, Site};

/// Sites that run until this is dropped.
pub(crate) struct Playground {
    shared: Arc<Shared>,
    /// Stops the sites' thread when dropped. They have their own thread, so that the fetcher doesn't slow them down.
    _stop: tokio::sync::oneshot::Sender<Infallible>,
}

struct Shared {
    clock: Clock,
    address: SocketAddr,
    sites: Vec<(Mutex<Site>, SocketAddr)>,
}

/// A site, and what it counted.
#[derive(Debug, Clone)]
pub(crate) struct SiteReport {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Its URL by name.
    pub(crate) url: String,
    /// Its URL by port.
    pub(crate) port_url: String,
    pub(crate) tally: Tally,
}

impl Playground {
    /// Listens on `listen` and on one port per site: the ports above it, or free ones if its port is 0.
    pub(crate) fn start(listen: SocketAddr) -> io::Result<Self> {
        if listen.port().checked_add(SITES.len() as u16).is_none() {
            let what = format!("its sites need the {} ports above it", SITES.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let main = bind(listen)?;
        let above = |nth| if listen.port() == 0 { 0 } else { listen.port().saturating_add(nth) };
        let own = (1..=SITES.len() as u16).map(|nth| bind(SocketAddr::new(listen.ip(), above(nth))));
        let own = own.collect::<io::Result<Vec<_>>>()?;
        let mut sites = Vec::new();
        for ((name, about, behavior), listener) in SITES.into_iter().zip(&own) {
            sites.push((Mutex::new(Site::new(name, about, behavior)), listener.local_addr()?));
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

    /// The address of the list of sites.
    pub(crate) fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The URL of a site by name.
    pub(crate) fn url(&self, name: &str) -> String {
        self.shared.url(name)
    }

    /// The sites, with what they counted.
    pub(crate) fn reports(&self) -> Vec<SiteReport> {
        self.shared.reports()
    }
}

impl Shared {
    fn url(&self, name: &str) -> String {
        format!("http://{name}.localhost:{}", self.address.port())
    }

    fn reports(&self) -> Vec<SiteReport> {
        let one = |(site, address): &(Mutex<Site>, SocketAddr)| {
            let site = lock(site);
            let (url, port_url) = (self.url(site.name), format!("http://{address}"));
            SiteReport { name: site.name, about: site.about, url, port_url, tally: site.tally() }
        };
        self.sites.iter().map(one).collect()
    }

    /// The site that a request is for, by port or by name, and its base URL.
    fn find(&self, own: Option<usize>, host: &str) -> Option<(&Mutex<Site>, String)> {
        if let Some((site, address)) = own.and_then(|nth| self.sites.get(nth)) {
            return Some((site, format!("http://{address}")));
        }
        let name = host.split(':').next()?.strip_suffix(".localhost")?;
        let (site, _) = self.sites.iter().find(|(site, _)| lock(site).name == name)?;
        Some((site, self.url(name)))
    }

    /// The response to a request; none if the site drops the connection.
    async fn answer<T>(&self, own: Option<usize>, request: &Request<T>) -> Option<Response<Full<Bytes>>> {
        let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let host = text(HOST).unwrap_or_default();
        let Some((site, base)) = self.find(own, host) else {
            let page = pages::index(&self.reports());
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
            // Perhaps too many files are open: try again in a moment.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                // On an error, hyper closes the connection without a response.
                async move { shared.answer(own, &request).await.ok_or("connection dropped") }
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            let connection = server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
    }
}

/// The sites: name, description, behavior.
const SITES: [(&str, &str, Behavior); 9] = [
    ("strict", "a site that answers 10 requests, then 429 with Retry-After: 5", Behavior::Strict),
    ("hidden", "a site with an undocumented limit of one request per 1.5 s", Behavior::Hidden),
    ("slow", "a site that takes 2 s per page", Behavior::Slow),
    ("flaky", "a site that sometimes answers 503 or drops the connection", Behavior::Flaky),
    ("robots", "a site whose robots.txt sets a crawl-delay of 3 s and disallows /private/", Behavior::Robots),
    ("harbour", "a site whose front page links to a feed", Behavior::Feed),
    ("garden", "an ordinary site", Behavior::Plain),
    ("library", "another ordinary site", Behavior::Plain),
    ("museum", "one more ordinary site", Behavior::Plain),
];
