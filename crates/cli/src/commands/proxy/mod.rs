//! `comity proxy` and `comity exec`: start the proxy of the engine, make its CA, run a command behind it.
//!
//! - here: `comity proxy`
//! - `exec`: `comity exec`; `variables`: what it sets for the command

mod exec;
mod variables;

use std::sync::Arc;

use comity::config::{Config, HttpsMode, Overrides, RobotsPolicy};
use comity::core::time::Span;
use comity::gate::{CloseMode, Gate};
use comity::proxy::{Authority, AuthorityError, Https, Proxy, ProxyCounts, ProxySettings};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::args::{Global, Proxy as Args, ProxyCommand, ProxyPacing};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) use exec::run as exec;

pub(crate) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let given = Overrides {
        proxy_listen: args.listen,
        proxy_https: args.https,
        proxy_wait_max: args.pacing.wait_max.clone(),
        ..Overrides::default()
    };
    let config = setup::config(global, given)?;
    if let Some(ProxyCommand::Ca { domain }) = args.command {
        return make_ca(global, &config, &domain);
    }
    output::log_of_service(&config.log, global);
    let mut signals = Signals::new()?;
    let https = match config.proxy.https {
        HttpsMode::Tunnel => Https::Tunnel,
        HttpsMode::Decrypt => Https::Decrypt(Arc::new(open_ca(&config)?)),
    };
    let started = start(&config, &args.pacing, https, ProxySettings::default().tokens);
    let (proxy, gate) = signals.unless_stopped(started).await?;
    let listen = config.proxy.listen;
    if !proxy.may_listen_on(listen.ip()) {
        return Err(exit::usage(format!(
            "proxy.listen = {listen}: anyone who can reach this address could use the proxy; set proxy.tokens, or listen on \
             127.0.0.1"
        )));
    }
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|error| exit::usage(format!("proxy.listen = {listen}: {error}")))?;
    let address = listener.local_addr()?;
    let mode = if config.proxy.https == HttpsMode::Decrypt { "decrypt" } else { "tunnel" };
    if global.json {
        output::object(&json!({ "listening": format!("http://{address}"), "https": mode }));
    } else {
        let store = setup::location(&config);
        output::remark(&format!(
            "Proxy on http://{address} (https: {mode}), store {store}; press Ctrl-C to stop"
        ));
    }
    let serving = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.serve(listener).await }
    });
    signals.until_stop().await;
    proxy.stop();
    let ended = async {
        let _ = serving.await;
        gate.close(CloseMode::Stop).await
    };
    signals.unless_stopped(ended).await?;
    let counts = proxy.counts();
    match global.json {
        true => output::object(&counts_json(&counts)),
        false => output::remark(&summary(&counts)),
    }
    Ok(exit::DONE)
}

/// A proxy with these settings, on the gate of the store.
async fn start(
    config: &Config,
    pacing: &ProxyPacing,
    https: Https,
    tokens: Vec<comity::config::Token>,
) -> anyhow::Result<(Proxy, Gate)> {
    let proxy = &config.proxy;
    let settings = ProxySettings {
        https,
        wait_max: proxy.wait_max,
        fail_fast: pacing.fail_fast,
        retries_max: if pacing.retry { config.job.max_retries } else { 0 },
        robots: if pacing.robots.as_deref() == Some("obey") {
            RobotsPolicy::Obey
        } else {
            RobotsPolicy::Ignore
        },
        connect_ports: proxy.connect_ports.clone(),
        tokens: if tokens.is_empty() { proxy.tokens.clone() } else { tokens },
        connections_max: proxy.connections_max as usize,
        head_max: usize::try_from(proxy.head_max.bytes()).unwrap_or(usize::MAX),
        idle_timeout: proxy.idle_timeout,
    };
    let transport = comity::client::transport(config)?;
    let store = setup::open_store_for_work(config).await?;
    let gate = setup::gate(config, store.clone(), "proxy").await?;
    Ok((Proxy::new(settings, config, gate.clone(), transport, Some(store)), gate))
}

fn make_ca(global: &Global, config: &Config, names: &[String]) -> anyhow::Result<u8> {
    let folder = &config.proxy.ca;
    let authority = Authority::new(comity::clock::Clock::new().now(), CA_YEARS, names)?;
    authority.save(folder).map_err(|error| match error {
        AuthorityError::Exists { .. } => exit::usage(format!(
            "proxy.ca = {folder:?}: there is a CA already; delete the folder to make another one, which every client has to \
             trust anew"
        )),
        error => exit::usage(format!("proxy.ca = {folder:?}: {error}")),
    })?;
    let certificate = folder.join("ca.pem");
    match global.json {
        true => output::object(&json!({ "certificate": certificate, "key": folder.join("ca.key") })),
        false => {
            output::line(&certificate.display().to_string());
            output::remark(
                "Clients that use the proxy have to trust this certificate; docs/proxy.md shows how",
            );
        }
    }
    Ok(exit::DONE)
}

fn open_ca(config: &Config) -> anyhow::Result<Authority> {
    let folder = &config.proxy.ca;
    Authority::open(folder)
        .map_err(|error| exit::usage(format!("proxy.ca = {folder:?}: {error}; comity proxy ca makes one")))
}

fn summary(counts: &ProxyCounts) -> String {
    let ProxyCounts { requests, rate_limited, refused, waited } = counts;
    let plural = if *requests == 1 { "" } else { "s" };
    format!(
        "{requests} request{plural}, waited {} in total, {rate_limited} rate limited (429), {refused} answered by the proxy",
        whole_seconds(*waited)
    )
}

fn counts_json(counts: &ProxyCounts) -> Value {
    json!({
        "requests": counts.requests,
        "rate_limited": counts.rate_limited,
        "refused": counts.refused,
        "waited_ms": counts.waited.as_millis_up(),
    })
}

fn whole_seconds(span: Span) -> String {
    Span::from_secs(span.as_secs_up()).prose().to_string()
}

/// How long a CA is valid.
const CA_YEARS: u16 = 5;
