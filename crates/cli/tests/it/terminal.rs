//! A real terminal: tmux runs a command in it and captures the screen.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::comity::World;
use crate::log::wait_until;

/// A terminal with its own tmux server; both end when this is dropped.
pub(crate) struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs a shell line in the folder of `world`, with `env` set and `comity` on the path.
    pub(crate) fn open(world: &World, columns: u32, rows: u32, env: &[(&str, &str)], line: &str) -> Self {
        let nth = STARTED.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { socket: format!("comity-test-{}-{nth}", std::process::id()) };
        let set: String = env.iter().map(|(name, value)| format!("export {name}='{value}'; ")).collect();
        let comity = env!("CARGO_BIN_EXE_comity");
        let script = format!("comity() {{ {comity} \"$@\"; }}; {set}{line}; echo ended $?; exec sleep 600");
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let (place, shell) = (world.path(""), ["bash", "-c", script.as_str()]);
        let mut args = vec!["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, "-c"];
        args.extend([
            place.to_str().unwrap(),
            "env",
            "-u",
            "NO_COLOR",
            "LC_ALL=C.UTF-8",
            "TERM=screen-256color",
        ]);
        args.extend(shell);
        terminal.tmux(&args);
        terminal
    }

    /// The lines on the screen, without empty ones at the end.
    pub(crate) fn lines(&self) -> Vec<String> {
        // The view is drawn eight times per second, so capturing it more often is useless.
        std::thread::sleep(Duration::from_millis(40));
        let shown = self.tmux(&["capture-pane", "-p"]);
        let text = String::from_utf8(shown.stdout).unwrap();
        let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    /// The screen with everything that scrolled off it, and with colors.
    pub(crate) fn history(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p", "-e", "-J", "-S", "-"]).stdout).unwrap()
    }

    /// Waits until a line contains `text`.
    #[track_caller]
    pub(crate) fn until(&self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        wait_until(&format!("the terminal shows {text:?}"), || {
            lines = self.lines();
            lines.iter().any(|line| line.contains(text))
        });
        lines
    }

    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Closes the terminal, as if its window were closed.
    pub(crate) fn close(self) {}

    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        let done = tmux.args(["-L", &self.socket]).args(args).output().expect("tmux is installed");
        assert!(done.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        done
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

static STARTED: AtomicU32 = AtomicU32::new(0);
