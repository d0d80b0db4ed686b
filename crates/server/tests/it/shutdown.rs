//! Shutting down: callers in line are answered first.

use std::sync::Arc;

use serde_json::json;
use tokio::net::TcpStream;

use crate::acquire::{acquire, waiting};
use crate::script::decided;
use crate::server::{COLLECTOR, config, serve, serve_with_clock, store_in, with_timeout};

/// B11
#[tokio::test]
async fn callers_in_line_are_answered_on_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let server = Arc::new(serve(&toml).await);
    server.permit("a.example").await;
    let line: Vec<_> = (0..5).map(|_| acquire(&server, "a.example")).collect();
    waiting(&server, "a.example", 5).await;
    let (address, clock, control) = (server.address(), server.clock.clone(), server.clock_control());
    server.begin_stop();
    for waits in line {
        let decision = with_timeout("an answer", waits).await.unwrap();
        assert_eq!(
            decision,
            json!({
                "proceed": false, "wait_ms": 1_000, "reason": "the service is shutting down; ask again when it is back",
                "permit": null, "lease_ms": null, "domain": "a.example", "limit": "stopping",
                "origin": "service", "refused": false, "waited_ms": 0,
            })
        );
    }
    server.wait_stopped().await;
    assert!(TcpStream::connect(address).await.is_err(), "nothing listens any more");
    let server = serve_with_clock(config(&toml), clock, control).await.unwrap();
    assert_eq!(decided(&server.check("a.example").await), "wait 1000 (min_delay)");
}
