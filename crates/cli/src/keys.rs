//! Single keys typed on a terminal, such as `q` in `comity top`.

#[cfg(unix)]
pub(crate) use unix::Keys;

#[cfg(unix)]
mod unix {
    use std::io::{self, Read};

    use rustix::process::getpgrp;
    use rustix::termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
    };
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// Reads keys while it exists. Then the terminal is as it was before.
    pub(crate) struct Keys {
        before: Termios,
        pressed: UnboundedReceiver<u8>,
    }

    impl Keys {
        /// Starts to read keys from stdin; `None` if it isn't a terminal, or if this process is in the background.
        pub(crate) fn listen() -> Option<Self> {
            let before = tcgetattr(io::stdin()).ok()?;
            // Whoever changes a terminal from the background is suspended.
            tcgetpgrp(io::stdin()).ok().filter(|group| *group == getpgrp())?;
            let mut modes = before.clone();
            // Keys come one by one and aren't shown. Ctrl-C and Ctrl-Z still work.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok()?;
            let (sender, pressed) = unbounded_channel();
            // It ends with the process: reading a terminal can't be interrupted.
            std::thread::spawn(move || {
                let mut key = [0];
                while io::stdin().read_exact(&mut key).is_ok() && sender.send(key[0]).is_ok() {}
            });
            Some(Self { before, pressed })
        }

        /// Waits for a key.
        pub(crate) async fn next(&mut self) -> u8 {
            match self.pressed.recv().await {
                Some(key) => key,
                // The terminal is gone.
                None => std::future::pending().await,
            }
        }
    }

    impl Drop for Keys {
        fn drop(&mut self) {
            // Ignored if the terminal is gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
        }
    }
}

/// Keys are not read here; Ctrl-C works.
#[cfg(not(unix))]
pub(crate) struct Keys;

#[cfg(not(unix))]
impl Keys {
    pub(crate) fn listen() -> Option<Self> {
        None
    }

    pub(crate) async fn next(&mut self) -> u8 {
        std::future::pending().await
    }
}
