//! The network between one machine and the database drops what is sent, in both directions or in one. The sites can be
//! reached all the time.

use crate::database::{Database, wait_for_sql};
use crate::fleet::{Fleet, UNSAVED_US};
use crate::log::{now_us, wait_until};
use crate::machines::Way;
use crate::sites::Sites;

/// B9, B74, B77
#[test]
#[ignore = "./test fleet"]
fn a_machine_that_is_cut_off_stops_in_time_and_comes_back() {
    cut(Way::Both);
}

/// B9, B74, B77
#[test]
#[ignore = "./test fleet"]
fn a_machine_whose_packets_do_not_reach_the_database_stops_in_time_and_comes_back() {
    cut(Way::ToDatabase);
}

/// B9, B74, B77
#[test]
#[ignore = "./test fleet"]
fn a_machine_that_hears_nothing_from_the_database_stops_in_time_and_comes_back() {
    cut(Way::FromDatabase);
}

fn cut(way: Way) {
    let fleet = Fleet::new(Database::shared(), Sites::start(4));
    let (one, other) = (fleet.machine(), fleet.machine());
    let urls = (100, 50);
    let team = fleet.direct_team(&one, &other, urls);
    let first = &team.first;
    one.cut(way);
    let cut_at = now_us();
    fleet.note_fault(&first.by, UNSAVED_US, LEASE_US);
    let died = format!("SELECT count(*) FROM {}.record WHERE domain IS NULL", fleet.schema);
    wait_for_sql(fleet.database, &died, "1");
    let stopped_at = fleet.sites.last_by(&first.by).unwrap();
    assert!(stopped_at - cut_at < LEASE_US, "it sent for {} µs after the cut", stopped_at - cut_at);
    eprintln!("{way:?}: sent for {} ms after the cut", (stopped_at - cut_at) / 1_000);
    let before = fleet.sites.count();
    fleet.sites.wait_for(before + 20);
    one.reconnect();
    wait_until("it fetches again", || fleet.sites.last_by(&first.by).unwrap() > stopped_at);
    team.finish(&fleet);
    fleet.judge_team(urls);
}

const LEASE_US: i64 = 10_000_000;
