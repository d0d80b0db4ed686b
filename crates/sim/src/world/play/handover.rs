//! How domains get new holders: kills, clean stops, and takeovers by other processes.

use std::sync::Arc;

use comity_core::dispatch::Dispatch;
use comity_core::pace::{LastHolder, Pace, Terms};
use comity_core::task::{TaskState, TaskStep};
use comity_core::time::Span;

use super::super::{FaultKind, Takeover};
use super::{Attempt, Event, JOB, Play, Process, TakeoverKind, host_domain, step};

impl Play<'_> {
    pub(super) fn fault(&mut self, nth: usize) {
        let fault = self.spec.faults[nth];
        match fault.kind {
            FaultKind::Step { by } => return self.clocks.step(by),
            FaultKind::Suspend { length } => return self.clocks.suspend(self.now + length),
            FaultKind::Reboot => return self.reboot(),
            FaultKind::Kill | FaultKind::Restart | FaultKind::Take { .. } => {}
        }
        if self.processes[fault.process].dispatch.is_none() || self.processes[fault.process].stopping {
            return;
        }
        match fault.kind {
            FaultKind::Kill => self.kill(fault.process),
            FaultKind::Restart => {
                self.processes[fault.process].stopping = true;
                self.stop_if_idle(fault.process);
            }
            FaultKind::Take { host } => {
                let domain = self.domain_of[host];
                self.want(domain, fault.process);
            }
            FaultKind::Step { .. } | FaultKind::Suspend { .. } | FaultKind::Reboot => {}
        }
    }

    /// All processes are killed, and the machine boots again.
    fn reboot(&mut self) {
        for process in 0..self.processes.len() {
            if self.processes[process].dispatch.is_some() {
                self.clocks.note(process, self.now);
                self.kill(process);
            }
        }
        self.clocks.reboot(self.now);
        self.clocks.wakes.push(self.now + DOWNTIME);
    }

    fn kill(&mut self, process: usize) {
        self.processes[process].dispatch = None;
        let mine = |attempt: &&mut Attempt| attempt.process == process && !attempt.over;
        for attempt in self.attempts.iter_mut().filter(mine) {
            attempt.over = true;
            if let Some(entry) = attempt.entry {
                self.log[entry].end = Some(self.now);
            }
            let state = &mut self.tasks[attempt.queued.task].state;
            *state = step(*state, TaskStep::Rescue);
        }
        self.post(self.now + DOWNTIME, Event::Revive(process));
        for domain in 0..self.domains.len() {
            if self.domains[domain].holder == Some(process) {
                self.domains[domain].holder = None;
                self.domains[domain].saved.pace = None;
                let successor = self.successor(process);
                let at = self.now + if successor == process { DOWNTIME + NOTICED } else { NOTICED };
                self.post(at, Event::Take { domain, process: successor, kind: TakeoverKind::Lost });
            }
        }
    }

    /// Completes a clean stop once nothing is in flight: all domains are released with their paces.
    pub(super) fn stop_if_idle(&mut self, process: usize) {
        let this = &self.processes[process];
        if !this.stopping || this.free_workers < self.spec.workers {
            return;
        }
        for domain in 0..self.domains.len() {
            if self.domains[domain].holder == Some(process) {
                self.release(domain);
                let successor = self.successor(process);
                let at = self.now + if successor == process { DOWNTIME + NOTICED } else { NOTICED };
                self.post(at, Event::Take { domain, process: successor, kind: TakeoverKind::Restarted });
            }
        }
        self.processes[process].dispatch = None;
        self.post(self.now + DOWNTIME, Event::Revive(process));
    }

    fn want(&mut self, domain: usize, process: usize) {
        let state = &mut self.domains[domain];
        let Some(holder) = state.holder.filter(|holder| *holder != process) else { return };
        state.wanted = Some(process);
        if let Some(dispatch) = &mut self.processes[holder].dispatch
            && let Some(id) = dispatch.paces().find(&state.name)
        {
            dispatch.drain(id);
        }
        self.hand_over_if_free(domain);
    }

    pub(super) fn hand_over_if_free(&mut self, domain: usize) {
        let busy = |attempt: &Attempt| attempt.domain == domain && !attempt.over;
        let Some(process) = self.domains[domain].wanted else { return };
        if self.domains[domain].holder.is_none() || self.attempts.iter().any(busy) {
            return;
        }
        self.domains[domain].wanted = None;
        self.release(domain);
        self.post(self.now + MOMENT, Event::Take { domain, process, kind: TakeoverKind::HandedOver });
    }

    /// The holder releases a domain cleanly: its pace is saved, and its waiters go back to the store.
    fn release(&mut self, domain: usize) {
        let state = &mut self.domains[domain];
        let Some(holder) = state.holder.take() else { return };
        let Some(dispatch) = &mut self.processes[holder].dispatch else { return };
        let Some(id) = dispatch.paces().find(&state.name) else { return };
        match dispatch.release(id) {
            Some((pace, _)) => state.saved.pace = Some(pace.encode()),
            None => unreachable!("a domain is released only when nothing is in flight"),
        }
    }

    pub(super) fn take(&mut self, domain: usize, process: usize, kind: TakeoverKind) {
        // The new holder may have died or be stopping: another live process takes over, or this is tried again.
        let lives = |process: &Process| process.dispatch.is_some() && !process.stopping;
        if !lives(&self.processes[process]) {
            let successor = self.processes.iter().position(lives).unwrap_or(process);
            return self.post(self.now + DOWNTIME, Event::Take { domain, process: successor, kind });
        }
        let (now, state) = (self.clocks.read(process, self.now), &mut self.domains[domain]);
        let Some(dispatch) = &mut self.processes[process].dispatch else { return };
        let host = state.hosts[0];
        let rule = Arc::clone(self.rules.rule(&host_domain(host)));
        let terms = Terms { rule: &rule, crawl_delay: self.spec.hosts[host].crawl_delay };
        let saved = state.saved.pace.take();
        let last_holder = match (kind, &saved) {
            (TakeoverKind::Lost, _) => LastHolder::Died { latest: now },
            (TakeoverKind::HandedOver, Some(bytes)) => LastHolder::HandedOver(bytes),
            (TakeoverKind::Restarted, Some(bytes)) => LastHolder::Stopped(bytes),
            (_, None) => LastHolder::None,
        };
        let inherited = Pace::inherit(terms, &state.saved.limits, last_holder, now);
        let pace = inherited.unwrap_or_else(|error| panic!("{error}"));
        if let Some(fresh) = dispatch.pace_mut(&state.name, now) {
            *fresh = pace;
        }
        state.holder = Some(process);
        if kind == TakeoverKind::Lost {
            self.takeovers.extend(state.hosts.iter().map(|host| Takeover { host: *host, at: self.now }));
        }
        let hosts = state.hosts.clone();
        for task in 0..self.tasks.len() {
            if self.tasks[task].state == TaskState::Waiting && hosts.contains(&self.tasks[task].host) {
                self.wait(task, self.tasks[task].ready_at);
            }
        }
    }

    pub(super) fn revive(&mut self, process: usize) {
        self.join_time(process);
        let mut dispatch = Dispatch::new(self.spec.seed);
        dispatch.job(JOB, self.spec.concurrency);
        self.processes[process] = Process {
            dispatch: Some(dispatch),
            free_workers: self.spec.workers,
            stopping: false,
            pump_at: None,
        };
    }

    /// Another live process, or the same one after its restart.
    fn successor(&self, process: usize) -> usize {
        let lives =
            |(nth, other): &(usize, &Process)| *nth != process && other.dispatch.is_some() && !other.stopping;
        self.processes.iter().enumerate().find(lives).map_or(process, |(nth, _)| nth)
    }
}

const DOWNTIME: Span = Span::from_secs(3);
const NOTICED: Span = Span::from_millis(250);
const MOMENT: Span = Span::from_millis(5);
