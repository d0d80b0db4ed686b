//! A database whose clock is wrong, and is set while everybody works.

use std::time::Duration;

use crate::database::{Database, Options};
use crate::fleet::Fleet;
use crate::judge::Ruling;
use crate::sites::Sites;

/// B7, B9, B74: a clock that is a minute off changes nothing, and one that is set frees no site.
#[test]
#[ignore = "./test fleet"]
fn a_database_whose_clock_is_off_and_is_set_frees_nothing() {
    let database = Database::start(&Options { clock: Some("+60s"), ..Options::default() });
    let fleet = Fleet::new(&database, Sites::start(4));
    let (one, other) = (fleet.machine(), fleet.machine());
    let urls = (100, 60);
    let team = fleet.direct_team(&one, &other, urls);
    let mut others = Vec::new();
    for clock in ["-60s", "+3600s", "+0s", "+60s"] {
        database.set_clock(clock);
        std::thread::sleep(Duration::from_secs(3));
        let before = fleet.sites.count();
        fleet.sites.wait_for(before + 10);
        // One that joins shares the time of those that run.
        others.push(fleet.fetch(&one, &["--job", "one"]));
    }
    let died = format!("SELECT count(*) FROM {}.record WHERE domain IS NULL", fleet.schema);
    assert_eq!(database.sql(&died), "0", "somebody was declared dead");
    team.finish(&fleet);
    for member in others {
        member.process.wait().expect(0);
    }
    let (one, two) = urls;
    fleet.judge_by_logs(&Ruling { delay_ms: 200, urls: vec![("one", one), ("two", two)] });
}
