//! What the system and people at the keyboard ask for while a command runs. Listened for from the beginning, so that
//! nothing is lost.

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Ctrl-C, a terminal that closed, or the system: stop.
    Stop,
    /// SIGHUP, for a service: read the configuration again.
    Reload,
}

/// Ctrl-C, the terminal closing, the system asking to stop, or to read the configuration again.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Not listened for where it is to be ignored, as under nohup.
    hangup: Option<tokio::signal::unix::Signal>,
    /// What a hang-up asks for.
    hangup_asks: Asked,
    is_stopping: bool,
}

#[cfg(unix)]
impl Signals {
    /// Listens for what stops a command.
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup, hangup_asks: Asked::Stop, is_stopping: false })
    }

    /// Takes SIGHUP for the wish to read the configuration again, as services do.
    pub(crate) fn with_reload(mut self) -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        self.hangup = Some(signal(SignalKind::hangup())?);
        self.hangup_asks = Asked::Reload;
        Ok(self)
    }

    pub(crate) async fn next(&mut self) -> Asked {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let asked = tokio::select! {
                _ = self.interrupt.recv() => Asked::Stop,
                _ = self.terminate.recv() => Asked::Stop,
                _ = hangup => match self.hangup_asks {
                    // Shell and system both report that a terminal closed. That nobody watches any more is no reason to
                    // hurry.
                    Asked::Stop if self.is_stopping => continue,
                    asked => asked,
                },
            };
            self.is_stopping |= asked == Asked::Stop;
            return asked;
        }
    }
}

/// Whether this process was started to outlive its terminal.
#[cfg(target_os = "linux")]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The first bit is that of the first signal, which is SIGHUP.
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Whether this process was started to outlive its terminal. What is ignored cannot be asked for here, but nohup takes
/// the terminal away from what it starts.
#[cfg(all(unix, not(target_os = "linux")))]
fn ignores_hangup() -> bool {
    use std::io::IsTerminal;
    !std::io::stdout().is_terminal() && !std::io::stderr().is_terminal()
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

impl Signals {
    /// Waits until a stop is asked for.
    pub(crate) async fn until_stop(&mut self) {
        while self.next().await != Asked::Stop {}
    }

    /// Does what may have to wait for a store that is away; whoever does not want to wait ends it at once.
    pub(crate) async fn unless_stopped<T>(&mut self, doing: impl Future<Output = T>) -> T {
        tokio::select! {
            done = doing => done,
            () = self.until_stop() => crate::exit::at_once(),
        }
    }

    /// Whether a stop was asked for since this was made or asked for the last time.
    pub(crate) async fn is_stop_asked(&mut self) -> bool {
        tokio::select! {
            biased;
            asked = self.next() => asked == Asked::Stop,
            () = std::future::ready(()) => false,
        }
    }
}
