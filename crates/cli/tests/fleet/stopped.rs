//! A process that is stopped for longer than its lease, and continues.

use crate::database::{Database, wait_for_sql};
use crate::fleet::{Fleet, UNSAVED_US};
use crate::sites::Sites;

/// B9, B74, B77
#[test]
#[ignore = "./test fleet"]
fn a_process_that_was_stopped_sends_nothing_for_sites_it_lost() {
    let fleet = Fleet::new(Database::shared(), Sites::start(4));
    let (one, other) = (fleet.machine(), fleet.machine());
    let urls = (80, 40);
    let team = fleet.direct_team(&one, &other, urls);
    let first = &team.first;
    fleet.note_fault(&first.by, UNSAVED_US, UNSAVED_US);
    first.process.signal("STOP");
    let died = format!("SELECT count(*) FROM {}.record WHERE domain IS NULL", fleet.schema);
    wait_for_sql(fleet.database, &died, "1");
    let before = fleet.sites.count();
    fleet.sites.wait_for(before + 20);
    first.process.signal("CONT");
    team.finish(&fleet);
    fleet.judge_team(urls);
}
