//! `comity serve`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use comity::config::{Given, Role};
use comity_server::{Insecure, Running, Service, make_token};
use serde_json::json;

use crate::args::{Global, Serve};
use crate::signals::{Asked, Signals};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, serve: Serve) -> anyhow::Result<u8> {
    if let Some(role) = serve.make_token.as_deref().and_then(Role::parse) {
        return token(global, role, serve.tokens_file.as_deref());
    }
    let given = || Given { listen: serve.listen.clone(), ..Given::default() };
    let config = setup::config(global, given())?;
    output::log_of_service(&config.log, global);
    // Listened for before anybody is told where it listens.
    let mut signals = Signals::new()?.with_reload()?;
    let insecure = if serve.insecure { Insecure::Accepted } else { Insecure::Refused };
    let store = config.store.to_string();
    let mut running = signals.unless_stopped(Service::start(config, insecure)).await?;
    tell(global, &running, &store);
    loop {
        tokio::select! {
            asked = signals.next() => if asked == Asked::Stop {
                break;
            },
            error = running.until_failed() => {
                tracing::error!(%error, "stopping: the store does not work");
                return Err(error.into());
            }
        }
        match setup::config(global, given()) {
            Ok(config) => match running.reload(config).await {
                Ok(()) => tracing::info!("the configuration was read again"),
                Err(error) => tracing::error!(%error, "the configuration stays as it was"),
            },
            Err(error) => tracing::error!("the configuration stays as it was: {error:#}"),
        }
    }
    tracing::info!("stopping: callers that wait are answered, what was learnt is kept");
    let mut again = signals;
    tokio::select! {
        stopped = running.stop() => stopped?,
        _ = again.next() => {
            output::remark("stopped at once");
            return Ok(exit::INTERRUPTED);
        }
    }
    Ok(exit::DONE)
}

fn tell(global: &Global, running: &Running, store: &str) {
    let (address, open) = (running.address(), running.is_open());
    if global.json {
        output::object(&json!({ "listening": format!("http://{address}"), "open": open }));
    } else {
        let who = if open { "open to everybody on this machine" } else { "for those with a token" };
        output::remark(&format!("listening on http://{address}, {who}; store {store}; Ctrl-C stops"));
    }
    if open && !address.ip().is_loopback() {
        tracing::warn!(%address, "everybody who reaches this address may use the service (--insecure)");
    }
    tracing::info!(%address, store, open, "the service listens");
}

fn token(global: &Global, role: Role, file: Option<&Path>) -> anyhow::Result<u8> {
    let (token, line) = make_token(role);
    if let Some(file) = file {
        keep(&line, file)
            .map_err(|error| exit::usage(format!("--tokens-file {}: {error}", file.display())))?;
    }
    if global.json {
        output::object(&json!({ "token": token, "line": line }));
        return Ok(exit::DONE);
    }
    output::line(&token);
    if let Some(file) = file {
        let file = file.display();
        output::remark(&format!(
            "the token is on stdout and is not shown again; its line was added to {file}"
        ));
        return Ok(exit::DONE);
    }
    output::remark(
        "the token is on stdout and is not shown again; in comity.toml, its line joins the others in one list:",
    );
    output::remark(&format!("[serve]\ntokens = [\"{line}\"]"));
    Ok(exit::DONE)
}

/// Adds a line to a file that nobody else may read.
fn keep(line: &str, file: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(format!("{line}\n").as_bytes())
}
