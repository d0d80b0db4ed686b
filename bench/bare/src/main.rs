//! The baseline of W4, W5 and W14: N workers take URLs from a list and fetch them with reqwest, and nothing else. It has
//! no pace, no store, no retries and no robots.txt. The cost of Comity is measured against it.
//!
//! Usage: `bench-bare FILE CONCURRENCY [IDLE]`, where FILE has one URL per line. IDLE is how many idle connections are
//! kept per host; with 0, every request opens a connection, as it must if there are many hosts that are rarely asked.
//! Prints `{"pages":…,"failed":…}`.
//!
//! TLS is rustls with ring, as in Comity, and certificates are verified: against those in `SSL_CERT_FILE`, or the
//! system's. Names below `localhost` are this machine.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use reqwest::{Client, ClientBuilder, Url};
use rustls::crypto::ring;
use tokio::task::LocalSet;

// One thread, because the clients are pinned to one core.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(concurrency)) = (arguments.next(), arguments.next()) else {
        return Err("usage: bench-bare FILE CONCURRENCY [IDLE]".into());
    };
    let urls: Rc<[Url]> = std::fs::read_to_string(file)?.lines().map(Url::parse).collect::<Result<_, _>>()?;
    let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let mut client = with_names(with_tls(client, &urls), &urls);
    if let Some(idle) = arguments.next() {
        client = client.pool_max_idle_per_host(idle.parse()?);
    }
    let client = client.build()?;
    let (next, pages) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));

    let workers = LocalSet::new();
    for _ in 0..concurrency.parse()? {
        let (urls, client, next, pages) =
            (Rc::clone(&urls), client.clone(), Rc::clone(&next), Rc::clone(&pages));
        workers.spawn_local(async move {
            while let Some(url) = urls.get(next.replace(next.get() + 1)) {
                if fetch(&client, url.clone()).await.is_ok() {
                    pages.set(pages.get() + 1);
                }
            }
        });
    }
    workers.await;

    println!("{{\"pages\":{},\"failed\":{}}}", pages.get(), urls.len() - pages.get());
    Ok(())
}

/// Fetches one page and reads its whole body.
async fn fetch(client: &Client, url: Url) -> reqwest::Result<()> {
    client.get(url).send().await?.error_for_status()?.bytes().await?;
    Ok(())
}

fn with_tls(client: ClientBuilder, urls: &[Url]) -> ClientBuilder {
    // This fails only if the process has a provider already.
    let _ = ring::default_provider().install_default();
    match urls.iter().any(|url| url.scheme() == "https") {
        true => client,
        // Without TLS, the system's certificates need not be read.
        false => client.tls_certs_only([]),
    }
}

fn with_names(client: ClientBuilder, urls: &[Url]) -> ClientBuilder {
    let names: BTreeSet<&str> = urls.iter().filter_map(Url::host_str).collect();
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    names
        .into_iter()
        .filter(|name| name.ends_with(".localhost"))
        .fold(client, |client, name| client.resolve(name, here))
}
