//! Sockets and their limits: the number of connections, the size of request headers, timeouts for idle clients and for
//! clients that don't read. What the requests mean is left to `api`.

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
use crate::service::{Limits, Service};
use crate::slow_readers::WriteTimeout;

/// Accepts connections until the service stops, then waits for open connections to finish.
pub(crate) async fn accept(service: Service, listener: TcpListener) {
    let api = Arc::new(Api::new(service.clone()));
    let limits = service.limits();
    let graceful = GracefulShutdown::new();
    let http = http(&limits);
    let mut warned_at = Timestamp::MIN;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = service.stopping() => break,
        };
        match accepted {
            Ok((stream, _)) if graceful.count() >= limits.connections_max => {
                service.metrics().connections_refused.inc();
                tokio::spawn(refuse(stream));
            }
            Ok((stream, _)) => serve(&service, &http, &graceful, api.clone(), stream),
            // For example, too many open files. That may be over in a moment.
            Err(error) => {
                if service.now().since(warned_at) >= WARN_INTERVAL {
                    warned_at = service.now();
                    tracing::warn!(%error, "could not accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("shutdown timed out with connections still open");
    }
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    // This timeout also runs while a connection is idle between requests.
    http.header_read_timeout(limits.idle_timeout);
    http.max_buf_size(limits.head_max);
    http.max_headers(HEADERS_MAX);
    // A client that closes its side has hung up, so it leaves the line.
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
    let connection = http.serve_connection(WriteTimeout::new(TokioIo::new(stream), WRITE_TIMEOUT), answer);
    let connection = graceful.watch(connection);
    let counted = CountedConnection::new(service.clone());
    tokio::spawn(async move {
        let _counted = counted;
        // Broken connections and malformed requests matter only when debugging.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection failed");
        }
    });
}

/// Counts a connection as open until it is dropped, even after a panic.
struct CountedConnection(Service);

impl CountedConnection {
    fn new(service: Service) -> Self {
        service.metrics().connections.inc();
        Self(service)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.metrics().connections.dec();
    }
}

/// Answers 503 because there are too many connections, without reading the request.
async fn refuse(mut stream: TcpStream) {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer)).await;
}

/// The maximum number of connections: what is wanted, or what the limit on open files allows if that is less. That
/// limit is raised as far as possible first, and some files are reserved for the store.
pub(crate) fn connections_max(wanted: usize) -> usize {
    let files = comity::descriptors::raise_limit();
    let fit = usize::try_from(files.saturating_sub(FILES_RESERVED)).unwrap_or(usize::MAX).max(1);
    // Slightly fewer than wanted are not worth a warning.
    if fit < wanted / 2 {
        tracing::warn!(
            wanted,
            fit,
            "serve.connections_max: the limit on open files is too low for this; raise it (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(fit)
}

/// Open files that are not connections, such as those of the store.
const FILES_RESERVED: u64 = 128;
/// The minimum time between two warnings that connections can't be accepted.
const WARN_INTERVAL: Span = Span::from_secs(10);
const HEADERS_MAX: usize = 64;
/// A client that reads nothing of its response for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests in progress may take when the service stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
