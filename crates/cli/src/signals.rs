//! What the system and people at the keyboard ask for while a command runs. Listened for from the beginning, so that
//! nothing is lost.

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Ctrl-C, or the system: stop.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// Ctrl-C, the system asking to stop, or to read the configuration again.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    /// Listens for what stops a command.
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup: None })
    }

    /// Listens for the wish to read the configuration again too, which otherwise ends a process.
    pub(crate) fn with_reload(mut self) -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        self.hangup = Some(signal(SignalKind::hangup())?);
        Ok(self)
    }

    pub(crate) async fn next(&mut self) -> Asked {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
            _ = hangup => Asked::Reload,
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn with_reload(self) -> std::io::Result<Self> {
        Ok(self)
    }

    pub(crate) async fn next(&mut self) -> Asked {
        let _ = tokio::signal::ctrl_c().await;
        Asked::Stop
    }
}
