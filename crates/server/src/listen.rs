//! Sockets and their limits: how many connections, how large a head, how long one may be idle. What is asked on them
//! is not known here.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::api;
use crate::service::{Limits, Service};

/// Accepts connections until the service stops, and then waits for those that are there.
pub(crate) async fn accept(service: Service, listener: TcpListener) {
    let router = api::router(service.clone());
    let limits = service.limits();
    let graceful = GracefulShutdown::new();
    let http = http(&limits);
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
            Ok((stream, _)) => serve(&service, &http, &graceful, router.clone(), stream),
            // Too many files are open, say: others may be closed in a moment.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
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
    router: Router,
    stream: TcpStream,
) {
    let _ = stream.set_nodelay(true);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    let service = service.clone();
    tokio::spawn(async move {
        service.metrics().connections.inc();
        // How a connection ends, and whether its head was one, is of interest to whoever looks for trouble only.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection broke");
        }
        service.metrics().connections.dec();
    });
}

/// There is no room: said in as few bytes as possible, without reading anything.
async fn turn_away(mut stream: TcpStream) -> Result<(), Infallible> {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer)).await;
    Ok(())
}

const HEADERS_MAX: usize = 64;
/// What is under way when the service stops has this long.
const LAST: Duration = Duration::from_secs(10);
