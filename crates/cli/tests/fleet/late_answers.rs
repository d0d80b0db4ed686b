//! Answers of the database that come late or not at all, while everything else works.

use std::time::Duration;

use crate::database::{Database, wait_for_sql};
use crate::fleet::Fleet;
use crate::machines::Hub;
use crate::proxy::{Fault, Proxy, What};
use crate::sites::Sites;

/// A statement of every heartbeat, and one of every release.
const BEAT: &str = "SET until_us = $2, beat = beat + 1";
const RELEASE: &str = "released_us = $11";

/// B9, B74: the process lives, but nobody can tell. It stops in time, and others continue its work.
#[test]
#[ignore = "./test fleet"]
fn a_process_whose_heartbeats_fail_stops_in_time_although_everything_else_works() {
    let (fleet, proxy) = two(What::Broken, BEAT, Duration::from_secs(12));
    assert!(proxy.struck() > 0);
    let died = format!("SELECT count(*) > 0 FROM {}.record WHERE domain IS NULL", fleet.schema);
    wait_for_sql(fleet.database, &died, "t");
}

/// B9, B74: a lease counts from when its renewal was sent.
#[test]
#[ignore = "./test fleet"]
fn a_renewal_whose_answer_is_late_extends_no_lease_by_that() {
    let (_, proxy) = two(What::Late(Duration::from_millis(2_600)), BEAT, Duration::from_secs(20));
    assert!(proxy.struck() > 0);
}

/// B9, B74: a site that was released is not released again after another process took it.
#[test]
#[ignore = "./test fleet"]
fn a_release_whose_answer_is_lost_is_carried_out_once() {
    let (_, proxy) = two(What::CommitUnheard, RELEASE, Duration::from_secs(12));
    assert!(proxy.struck() > 0);
}

/// Runs a job on two machines, one of which has a faulty connection for a while, and judges it.
fn two(what: What, sent: &'static str, lasting: Duration) -> (Fleet<'static>, Proxy) {
    let fleet = Fleet::new(Database::shared(), Sites::start(4));
    let proxy = Proxy::start(&Hub::get().databases, fleet.database.port);
    let (one, other) = (fleet.machine(), fleet.machine());
    let urls = (100, 50);
    let (through, directly) = (fleet.url(&proxy.address()), fleet.url(&other.database(fleet.database.port)));
    let team = fleet.team([&one, &other], [&through, &directly], urls);
    // What it fetches meanwhile may not be saved in time.
    fleet.note_fault(&team.first.by, 1_500_000, lasting.as_micros() as i64 + 5_000_000);
    proxy.set_fault(Some(Fault { sent, what }));
    std::thread::sleep(lasting);
    proxy.set_fault(None);
    team.finish(&fleet);
    fleet.judge_team(urls);
    (fleet, proxy)
}
