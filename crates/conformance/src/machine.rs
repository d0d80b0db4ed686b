//! A machine whose clocks are set by a test.

use std::sync::{Arc, Mutex, PoisonError};

use comity_core::time::{Span, Timestamp};
use comity_core::timeline::ClockReading;
use comity_store::machine::Machine;

use crate::process::at;

/// A machine with an uptime of 100 s, whose wall clock reads 0 on the virtual clock. Clones are the same machine.
#[derive(Debug, Clone)]
pub struct TestMachine(Arc<Mutex<ClockReading>>);

impl Default for TestMachine {
    fn default() -> Self {
        let reading = ClockReading { boot: "one".to_owned(), up: Span::from_secs(100), wall: at(0) };
        Self(Arc::new(Mutex::new(reading)))
    }
}

impl TestMachine {
    /// Lets time pass, including suspend.
    pub fn pass(&self, time: Span) {
        self.change(|reading| (reading.up, reading.wall) = (reading.up + time, reading.wall + time));
    }

    /// Sets the wall clock forward or back by this many seconds.
    pub fn step(&self, secs: i64) {
        self.change(|reading| {
            reading.wall = Timestamp::from_micros(reading.wall.as_micros() + secs * 1_000_000);
        });
    }

    /// Reboots the machine; that was seven seconds ago.
    pub fn reboot(&self) {
        self.change(|reading| (reading.boot, reading.up) = ("two".to_owned(), Span::from_secs(7)));
    }

    fn change<T>(&self, change: impl FnOnce(&mut ClockReading) -> T) -> T {
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
