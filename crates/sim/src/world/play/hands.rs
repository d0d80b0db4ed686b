//! How domains change hands: kills, clean stops, and processes that want what another holds.

use std::sync::Arc;

use comity_core::dispatch::Dispatch;
use comity_core::pace::{Left, Pace, Terms};
use comity_core::task::{TaskState, TaskStep};
use comity_core::time::Span;

use super::super::{FaultKind, Taken};
use super::{Attempt, Event, How, JOB, Play, Process, host_domain, step};

impl Play<'_> {
    pub(super) fn fault(&mut self, nth: usize) {
        let fault = self.spec.faults[nth];
        match fault.kind {
            FaultKind::Step { by } => return self.clocks.step(by),
            FaultKind::Sleep { length } => return self.clocks.sleep(self.now + length),
            FaultKind::Boot => return self.boot(),
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
            FaultKind::Step { .. } | FaultKind::Sleep { .. } | FaultKind::Boot => {}
        }
    }

    /// Everything ends at once, and a new boot begins.
    fn boot(&mut self) {
        for process in 0..self.processes.len() {
            if self.processes[process].dispatch.is_some() {
                self.clocks.note(process, self.now);
                self.kill(process);
            }
        }
        self.clocks.boot(self.now);
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
            let state = &mut self.tasks[attempt.work.task].state;
            *state = step(*state, TaskStep::Rescue);
        }
        self.post(self.now + DOWNTIME, Event::Revive(process));
        for domain in 0..self.domains.len() {
            if self.domains[domain].holder == Some(process) {
                self.domains[domain].holder = None;
                self.domains[domain].saved.pace = None;
                let heir = self.heir(process);
                let at = self.now + if heir == process { DOWNTIME + NOTICED } else { NOTICED };
                self.post(at, Event::Take { domain, process: heir, how: How::Lost });
            }
        }
    }

    /// A clean stop is over once nothing is on the wire: every domain is put down, with its pace.
    pub(super) fn stop_if_idle(&mut self, process: usize) {
        let this = &self.processes[process];
        if !this.stopping || this.free_workers < self.spec.workers {
            return;
        }
        for domain in 0..self.domains.len() {
            if self.domains[domain].holder == Some(process) {
                self.put_down(domain);
                let heir = self.heir(process);
                let at = self.now + if heir == process { DOWNTIME + NOTICED } else { NOTICED };
                self.post(at, Event::Take { domain, process: heir, how: How::Restarted });
            }
        }
        self.processes[process].dispatch = None;
        self.post(self.now + DOWNTIME, Event::Revive(process));
    }

    fn want(&mut self, domain: usize, process: usize) {
        let held = &mut self.domains[domain];
        let Some(holder) = held.holder.filter(|holder| *holder != process) else { return };
        held.wanted = Some(process);
        if let Some(dispatch) = &mut self.processes[holder].dispatch
            && let Some(id) = dispatch.paces().find(&held.name)
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
        self.put_down(domain);
        self.post(self.now + MOMENT, Event::Take { domain, process, how: How::HandedOver });
    }

    /// The holder puts a domain down cleanly: its pace is saved, those who wait go back to the store.
    fn put_down(&mut self, domain: usize) {
        let held = &mut self.domains[domain];
        let Some(holder) = held.holder.take() else { return };
        let Some(dispatch) = &mut self.processes[holder].dispatch else { return };
        let Some(id) = dispatch.paces().find(&held.name) else { return };
        match dispatch.release(id) {
            Some((pace, _)) => held.saved.pace = Some(pace.encode()),
            None => unreachable!("a domain is put down only when nothing is on the wire"),
        }
    }

    pub(super) fn take(&mut self, domain: usize, process: usize, how: How) {
        // The heir may have died or be stopping: whoever lives takes it, or it is tried again.
        let lives = |process: &Process| process.dispatch.is_some() && !process.stopping;
        if !lives(&self.processes[process]) {
            let heir = self.processes.iter().position(lives).unwrap_or(process);
            return self.post(self.now + DOWNTIME, Event::Take { domain, process: heir, how });
        }
        let (now, held) = (self.clocks.read(process, self.now), &mut self.domains[domain]);
        let Some(dispatch) = &mut self.processes[process].dispatch else { return };
        let host = held.hosts[0];
        let rule = Arc::clone(self.rules.rule(&host_domain(host)));
        let terms = Terms { rule: &rule, crawl_delay: self.spec.hosts[host].crawl_delay };
        let saved = held.saved.pace.take();
        let left = match (how, &saved) {
            (How::Lost, _) => Left::Died { latest: now },
            (How::HandedOver, Some(bytes)) => Left::HandedOver(bytes),
            (How::Restarted, Some(bytes)) => Left::Stopped(bytes),
            (_, None) => Left::New,
        };
        let inherited = Pace::inherit(terms, &held.saved.kept, left, now);
        let pace = inherited.unwrap_or_else(|error| panic!("{error}"));
        if let Some(fresh) = dispatch.pace_mut(&held.name, now) {
            *fresh = pace;
        }
        held.holder = Some(process);
        if how == How::Lost {
            self.takes.extend(held.hosts.iter().map(|host| Taken { host: *host, at: self.now }));
        }
        let hosts = held.hosts.clone();
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

    /// Another living process, or the same one later.
    fn heir(&self, process: usize) -> usize {
        let lives =
            |(nth, other): &(usize, &Process)| *nth != process && other.dispatch.is_some() && !other.stopping;
        self.processes.iter().enumerate().find(lives).map_or(process, |(nth, _)| nth)
    }
}

const DOWNTIME: Span = Span::from_secs(3);
const NOTICED: Span = Span::from_millis(250);
const MOMENT: Span = Span::from_millis(5);
