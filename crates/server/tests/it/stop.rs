//! A stop answers whoever waits.

use std::sync::Arc;

use serde_json::json;
use tokio::net::TcpStream;

use crate::acquire::{acquire, waiting};
use crate::script::decided;
use crate::served::{COLLECTOR, config, serve, serve_by, soon, store_in};

/// B11
#[tokio::test]
async fn whoever_waits_in_line_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{COLLECTOR}", store_in(folder.path()));
    let served = Arc::new(serve(&toml).await);
    served.permit("a.example").await;
    let line: Vec<_> = (0..5).map(|_| acquire(&served, "a.example")).collect();
    waiting(&served, "a.example", 5).await;
    let (address, clock, hands) = (served.address(), served.clock.clone(), served.hands());
    served.stop_soon();
    for waits in line {
        let decision = soon("an answer", waits).await.unwrap();
        assert_eq!(
            decision,
            json!({
                "proceed": false, "wait_ms": 1_000, "reason": "the service stops; ask again when it is back",
                "permit": null, "lease_ms": null, "domain": "a.example", "limit": "stopping",
                "origin": "service", "refused": false, "waited_ms": 0,
            })
        );
    }
    served.stopped().await;
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    let served = serve_by(config(&toml), clock, hands).await.unwrap();
    assert_eq!(decided(&served.check("a.example").await), "wait 1000 (min_delay)");
}
