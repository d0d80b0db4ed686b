//! PgBouncer in transaction mode between the machines and the database.

use crate::database::Database;
use crate::fleet::Fleet;
use crate::machines::Hub;
use crate::pooler::Pooler;
use crate::sites::Sites;

/// B9, B74: fewer connections than the processes have, and none of them keeps one.
#[test]
#[ignore = "./test fleet"]
fn a_transaction_pooler_may_stand_in_between() {
    let fleet = Fleet::new(Database::shared(), Sites::start(4));
    let pooler = Pooler::start(fleet.database, 4);
    let store = fleet.url(&format!("{}:{}", Hub::get().databases, pooler.port));
    let (one, other) = (fleet.machine(), fleet.machine());
    let urls = (60, 30);
    let team = fleet.team([&one, &other], [&store, &store], urls);
    fleet.sites.wait_for(100);
    let done = team.finish_without_first(&fleet);
    fleet.judge_team(urls);
    for line in pooler.log().lines() {
        assert!(!line.contains("ERROR") && !line.contains("WARNING"), "{line}");
    }
    for stderr in done.into_iter().map(|done| done.stderr) {
        assert!(!stderr.contains("WARN"), "{stderr}");
    }
}
