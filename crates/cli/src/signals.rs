//! Unix signals: Ctrl-C, SIGTERM and SIGHUP. Commands listen before they start to work, so that no signal is lost.

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Stop: Ctrl-C, SIGTERM, or SIGHUP because the terminal was closed.
    Stop,
    /// Reload the configuration: SIGHUP, for a service.
    Reload,
}

/// Makes writes beyond a limit on file sizes (`ulimit -f`) fail like those to a full disk; otherwise the kernel ends the
/// process without a word.
#[cfg(unix)]
pub(crate) fn survive_file_limit() {
    use tokio::signal::unix::{SignalKind, signal};
    // Once there is a handler, it stays.
    drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())));
}

#[cfg(not(unix))]
pub(crate) fn survive_file_limit() {}

/// Listens for signals.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// None if SIGHUP is to be ignored, as under nohup.
    hangup: Option<tokio::signal::unix::Signal>,
    /// What SIGHUP means.
    hangup_means: Signal,
    is_stopping: bool,
}

#[cfg(unix)]
impl Signals {
    /// Listens for the signals that stop a command.
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup, hangup_means: Signal::Stop, is_stopping: false })
    }

    /// Treats SIGHUP as a request to reload the configuration, as services do.
    pub(crate) fn with_reload(mut self) -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        self.hangup = Some(signal(SignalKind::hangup())?);
        self.hangup_means = Signal::Reload;
        Ok(self)
    }

    pub(crate) async fn next(&mut self) -> Signal {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let signal = tokio::select! {
                _ = self.interrupt.recv() => Signal::Stop,
                _ = self.terminate.recv() => Signal::Stop,
                _ = hangup => match self.hangup_means {
                    // Both the shell and the kernel send SIGHUP when a terminal closes. The second one must not count
                    // as a second Ctrl-C.
                    Signal::Stop if self.is_stopping => continue,
                    signal => signal,
                },
            };
            self.is_stopping |= signal == Signal::Stop;
            return signal;
        }
    }
}

/// Whether this process was started to outlive its terminal, as with nohup.
#[cfg(target_os = "linux")]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, the lowest bit.
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Whether this process was started to outlive its terminal, as with nohup. Which signals are ignored can't be read
/// here, but nohup redirects output away from the terminal.
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

    pub(crate) async fn next(&mut self) -> Signal {
        let _ = tokio::signal::ctrl_c().await;
        Signal::Stop
    }
}

impl Signals {
    /// Waits for a stop signal.
    pub(crate) async fn until_stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }

    /// Awaits work that may block on an unavailable store; a stop signal quits immediately.
    pub(crate) async fn unless_stopped<T>(&mut self, doing: impl Future<Output = T>) -> T {
        tokio::select! {
            done = doing => done,
            () = self.until_stop() => crate::exit::quit_now(),
        }
    }

    /// Whether a stop signal has arrived since the last call.
    pub(crate) async fn stop_requested(&mut self) -> bool {
        tokio::select! {
            biased;
            signal = self.next() => signal == Signal::Stop,
            () = std::future::ready(()) => false,
        }
    }
}
