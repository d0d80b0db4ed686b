//! The database restarts without a clean stop, while everybody works.

use std::time::Duration;

use crate::database::{Database, Options};
use crate::fleet::Fleet;
use crate::sites::Sites;

/// B9, B74, B77: what was fetched is saved when the database is back.
#[test]
#[ignore = "./test fleet"]
fn nothing_is_lost_or_repeated_when_the_database_crashes() {
    let database = Database::start(&Options::default());
    let fleet = Fleet::new(&database, Sites::start(6));
    let urls = (80, 40);
    let team = fleet.direct_team(&fleet.machine(), &fleet.machine(), urls);
    for _ in 0..crate::soak(4) {
        let before = fleet.sites.count();
        fleet.sites.wait_for(before + 40);
        std::thread::sleep(Duration::from_millis(fastrand::u64(..500)));
        database.control(&["restart", "-m", "immediate"]);
    }
    team.finish(&fleet);
    fleet.judge_team(urls);
}
