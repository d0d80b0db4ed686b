//! `comity serve`: starts the service, reloads it on SIGHUP, stops it; also creates tokens. The API is in
//! `comity-server`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use comity::config::{Overrides, Role};
use comity_server::{Insecure, Running, Service, make_token};
use serde_json::json;

use crate::args::{Global, Serve};
use crate::signals::{Signal, Signals};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, serve: Serve) -> anyhow::Result<u8> {
    if let Some(role) = serve.make_token.as_deref().and_then(Role::parse) {
        return token(global, role, serve.tokens_file.as_deref());
    }
    let given = || Overrides { listen: serve.listen.clone(), ..Overrides::default() };
    let config = setup::config(global, given())?;
    output::log_of_service(&config.log, global);
    // Listen for signals before announcing the address.
    let mut signals = Signals::new()?.with_reload()?;
    let insecure = if serve.insecure { Insecure::Accepted } else { Insecure::Refused };
    let store = config.store.to_string();
    let mut running = signals.unless_stopped(Service::start(config, insecure)).await?;
    announce(global, &running, &store);
    loop {
        tokio::select! {
            signal = signals.next() => if signal == Signal::Stop {
                break;
            },
            error = running.until_failed() => {
                tracing::error!(%error, "stopping: the store is unavailable");
                return Err(error.into());
            }
        }
        match setup::config(global, given()) {
            Ok(config) => match running.reload(config).await {
                Ok(()) => tracing::info!("configuration reloaded"),
                Err(error) => {
                    tracing::error!(%error, "configuration not reloaded; the previous rules and tokens stay in effect")
                }
            },
            Err(error) => tracing::error!(
                "configuration not reloaded; the previous rules and tokens stay in effect: {error:#}"
            ),
        }
    }
    tracing::info!("stopping: answering waiting callers, saving what was learned");
    tokio::select! {
        stopped = running.stop() => stopped?,
        _ = signals.next() => {
            output::remark("Stopped immediately");
            return Ok(exit::INTERRUPTED);
        }
    }
    Ok(exit::DONE)
}

/// Prints and logs where the service listens.
fn announce(global: &Global, running: &Running, store: &str) {
    let (address, open) = (running.address(), running.is_open());
    if global.json {
        output::object(
            &json!({ "listening": format!("http://{address}"), "dashboard": format!("http://{address}/"), "open": open }),
        );
    } else {
        let who = if open { "open to everyone on this machine" } else { "requires a token" };
        output::remark(&format!(
            "Listening on http://{address} ({who}), store {store}; press Ctrl-C to stop"
        ));
        output::remark(&format!("Dashboard: http://{address}/"));
    }
    if open && !address.ip().is_loopback() {
        tracing::warn!(%address, "anyone who can reach this address may use the service (--insecure)");
    }
    tracing::info!(%address, store, open, "service listening");
}

fn token(global: &Global, role: Role, file: Option<&Path>) -> anyhow::Result<u8> {
    let (token, line) = make_token(role);
    if let Some(file) = file {
        append(&line, file).map_err(|error| exit::usage(format!("--tokens-file = {file:?}: {error}")))?;
    }
    if global.json {
        output::object(&json!({ "token": token, "line": line }));
        return Ok(exit::DONE);
    }
    output::line(&token);
    if let Some(file) = file {
        let file = file.display();
        output::remark(&format!(
            "The token is on stdout and won't be shown again; its line was added to {file}"
        ));
        return Ok(exit::DONE);
    }
    output::remark(
        "The token is on stdout and won't be shown again. Add its line to the list of tokens in comity.toml:",
    );
    output::remark(&format!("[serve]\ntokens = [\"{line}\"]"));
    Ok(exit::DONE)
}

/// Appends a line to a file that only its owner may read.
fn append(line: &str, file: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(format!("{line}\n").as_bytes())
}
