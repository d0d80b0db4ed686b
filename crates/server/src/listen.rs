//! Sockets and their limits: how many connections, how large a head, how long one may be idle, or take
//! nothing of what is written. What is asked on them
//! is not known here.

use std::sync::Arc;
use std::time::Duration;

use comity::core::time::{Span, Timestamp};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::api::Api;
use crate::patient::Patient;
use crate::service::{Limits, Service};

/// Accepts connections until the service stops, and then waits for those that are there.
pub(crate) async fn accept(service: Service, listener: TcpListener) {
    let api = Arc::new(Api::new(service.clone()));
    let limits = service.limits();
    let graceful = GracefulShutdown::new();
    let http = http(&limits);
    let mut told_at = Timestamp::MIN;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = service.stopping() => break,
        };
        match accepted {
            Ok((stream, _)) if graceful.count() >= limits.connections_max => {
                service.metrics().connections_refused.inc();
                tokio::spawn(turn_away(stream));
            }
            Ok((stream, _)) => serve(&service, &http, &graceful, api.clone(), stream),
            // Too many files are open, say: others may be closed in a moment.
            Err(error) => {
                if service.now().since(told_at) >= TOLD_AGAIN {
                    told_at = service.now();
                    tracing::warn!(%error, "connections could not be accepted");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(LAST, graceful.shutdown()).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    // The time to send a head runs while a connection is idle, too.
    http.header_read_timeout(limits.idle_timeout);
    http.max_buf_size(limits.head_max);
    http.max_headers(HEADERS_MAX);
    // Who closes its side has gone: its place in line is given to the next (B11).
    http.half_close(false);
    http
}

fn serve(
    service: &Service,
    http: &http1::Builder,
    graceful: &GracefulShutdown,
    api: Arc<Api>,
    stream: TcpStream,
) {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request| {
        let api = api.clone();
        async move { api.answer(request).await }
    });
    let connection = http.serve_connection(Patient::new(TokioIo::new(stream), WRITTEN), answer);
    let connection = graceful.watch(connection);
    let open = Open::new(service.clone());
    tokio::spawn(async move {
        let _open = open;
        // How a connection ends, and whether its head was one, is of interest to whoever looks for trouble only.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection broke");
        }
    });
}

/// A connection that is counted until it ends, also by a panic.
struct Open(Service);

impl Open {
    fn new(service: Service) -> Self {
        service.metrics().connections.inc();
        Self(service)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics().connections.dec();
    }
}

/// There is no room: said in as few bytes as possible, without reading anything.
async fn turn_away(mut stream: TcpStream) {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer)).await;
}

/// So many connections at most, and no more than the system gives us files for: the limit is raised as far as we
/// may, and some are left for the store.
pub(crate) fn connections_max(wanted: usize) -> usize {
    let files = comity::descriptors::raise_limit();
    let fit = usize::try_from(files.saturating_sub(FILES_BESIDE)).unwrap_or(usize::MAX).max(1);
    // A few less make no difference to anybody.
    if fit < wanted / 2 {
        tracing::warn!(
            wanted,
            fit,
            "serve.connections_max: the system allows fewer open files (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(fit)
}

/// Files that are open beside connections.
const FILES_BESIDE: u64 = 128;
/// That connections cannot be accepted is told this often.
const TOLD_AGAIN: Span = Span::from_secs(10);
const HEADERS_MAX: usize = 64;
/// Who takes nothing of an answer for this long is given up.
const WRITTEN: Duration = Duration::from_secs(30);
/// What is under way when the service stops has this long.
const LAST: Duration = Duration::from_secs(10);
