//! `comity exec -- CMD`: runs a command behind a proxy of its own, on a free port and with a random password.
//!
//! The command keeps its terminal, stdin and stdout. Signals are passed on, and its exit code is ours.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

use anyhow::Context;
use comity::clock::Clock;
use comity::config::{Config, Overrides, Role, Token};
use comity::gate::CloseMode;
use comity::proxy::{Authority, Https};
use comity_server::make_token;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::{start, summary, variables};
use crate::args::{ExecCommand, Global};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, exec: ExecCommand) -> anyhow::Result<u8> {
    let given = Overrides { proxy_wait_max: exec.pacing.wait_max.clone(), ..Overrides::default() };
    let config = setup::config(global, given)?;
    output::log(&config.log, global);
    let tunnels = exec.https.as_deref() == Some("tunnel");
    let folder = if tunnels { None } else { Some(make_folder()?) };
    let https = match &folder {
        None => Https::Tunnel,
        Some(folder) => Https::Decrypt(Arc::new(make_ca(folder)?)),
    };
    let done = run_behind(global, &config, &exec, https, folder.as_deref()).await;
    exit::remove_temp_folder();
    done
}

async fn run_behind(
    global: &Global,
    config: &Config,
    exec: &ExecCommand,
    https: Https,
    folder: Option<&Path>,
) -> anyhow::Result<u8> {
    let mut forwarded = Forwarded::new()?;
    let (password, _) = make_token(Role::Use);
    let tokens = vec![Token::of(Role::Use, &password)];
    let (proxy, gate) = start(config, &exec.pacing, https, tokens).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for the proxy")?;
    let url = format!("http://comity:{password}@{}", listener.local_addr()?);
    let serving = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.serve(listener).await }
    });
    let no_proxy = std::env::var("no_proxy").or_else(|_| std::env::var("NO_PROXY")).ok();
    let (name, args) = exec.command.split_first().context("no command")?;
    let mut command = Command::new(name);
    command.args(args).envs(variables::of_proxy(&url, no_proxy.as_deref(), folder)).kill_on_drop(true);
    let code = match command.spawn() {
        Ok(mut child) => exit_code(forwarded.wait(&mut child).await?),
        Err(error) => {
            let name = name.to_string_lossy();
            output::failure(&format!("{name}: {error}"));
            if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
        }
    };
    proxy.stop();
    // Whatever the command left running loses its proxy.
    serving.abort();
    gate.close(CloseMode::HandOver).await?;
    if !global.quiet {
        output::remark(&format!("comity: {}", summary(&proxy.counts())));
    }
    Ok(code)
}

/// A folder that only its owner can read, deleted at the end.
fn make_folder() -> anyhow::Result<PathBuf> {
    let (name, _) = make_token(Role::Use);
    let folder = std::env::temp_dir().join(format!("comity-exec-{}", &name[..16]));
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&folder).with_context(|| folder.display().to_string())?;
    exit::remove_on_exit(&folder);
    Ok(folder)
}

/// A CA for this run. Its key stays in memory.
fn make_ca(folder: &Path) -> anyhow::Result<Authority> {
    let authority = Authority::new(Clock::new().now(), 1, &[])?;
    std::fs::write(folder.join(variables::CERTIFICATE), authority.pem())?;
    std::fs::write(folder.join(variables::BUNDLE), authority.bundle())?;
    Ok(authority)
}

/// The exit code of a command, as shells report it.
fn exit_code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILURES)
}

/// The signals that are passed on to the command.
#[cfg(unix)]
struct Forwarded {
    signals: Vec<(rustix::process::Signal, tokio::signal::unix::Signal)>,
}

#[cfg(unix)]
impl Forwarded {
    fn new() -> std::io::Result<Self> {
        use rustix::process::Signal;
        use tokio::signal::unix::{SignalKind, signal};
        let all = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
        let listened = all.map(|which| Ok((which, signal(SignalKind::from_raw(which.as_raw()))?)));
        Ok(Self { signals: listened.into_iter().collect::<std::io::Result<_>>()? })
    }

    /// Waits for the command to end, and passes signals on until then.
    async fn wait(&mut self, child: &mut Child) -> std::io::Result<ExitStatus> {
        use rustix::process::{Pid, Signal, kill_process};
        use std::io::IsTerminal;
        use std::task::Poll;
        // What is typed on a terminal reaches the command as well.
        let is_typed = std::io::stdin().is_terminal();
        loop {
            let next = std::future::poll_fn(|cx| {
                let polled = |(which, signal): &mut (Signal, tokio::signal::unix::Signal)| {
                    signal.poll_recv(cx).is_ready().then_some(*which)
                };
                self.signals.iter_mut().find_map(polled).map_or(Poll::Pending, Poll::Ready)
            });
            let which = tokio::select! {
                status = child.wait() => return status,
                which = next => which,
            };
            let reached = is_typed && [Signal::INT, Signal::QUIT].contains(&which);
            let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| !reached) {
                // It may have ended.
                let _ = kill_process(pid, which);
            }
        }
    }
}

#[cfg(not(unix))]
struct Forwarded;

#[cfg(not(unix))]
impl Forwarded {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn wait(&mut self, child: &mut Child) -> std::io::Result<ExitStatus> {
        loop {
            tokio::select! {
                status = child.wait() => return status,
                _ = tokio::signal::ctrl_c() => {}
            }
        }
    }
}

/// As in shells.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
