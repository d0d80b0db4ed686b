//! A machine whose clocks a test sets.

use std::sync::{Arc, Mutex, PoisonError};

use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Reading;
use comity_store::machine::Machine;

use crate::process::at;

/// A machine that has been up for 100 s, and whose wall clock reads 0 on the virtual clock. Clones are the same machine.
#[derive(Debug, Clone)]
pub struct TestMachine(Arc<Mutex<Reading>>);

impl Default for TestMachine {
    fn default() -> Self {
        let reading = Reading { boot: "one".to_owned(), up: Span::from_secs(100), wall: at(0) };
        Self(Arc::new(Mutex::new(reading)))
    }
}

impl TestMachine {
    /// Time passes, asleep or not.
    pub fn pass(&self, time: Span) {
        self.change(|reading| (reading.up, reading.wall) = (reading.up + time, reading.wall + time));
    }

    /// Somebody sets the wall clock by so many seconds.
    pub fn step(&self, secs: i64) {
        self.change(|reading| {
            reading.wall = Timestamp::from_micros(reading.wall.as_micros() + secs * 1_000_000);
        });
    }

    /// It was booted again, seven seconds ago.
    pub fn reboot(&self) {
        self.change(|reading| (reading.boot, reading.up) = ("two".to_owned(), Span::from_secs(7)));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Reading) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Machine for TestMachine {
    fn boot(&self) -> String {
        self.change(|reading| reading.boot.clone())
    }

    fn up(&self) -> Span {
        self.change(|reading| reading.up)
    }

    fn wall(&self) -> Timestamp {
        self.change(|reading| reading.wall)
    }
}
