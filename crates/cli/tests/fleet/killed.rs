//! Processes that are killed, on one job and on several.

use std::time::Duration;

use crate::database::Database;
use crate::fleet::{Fleet, Member};
use crate::judge::Ruling;
use crate::log::now_us;
use crate::machines::Machine;
use crate::sites::Sites;

/// B9, B74, B77
#[test]
#[ignore = "./test fleet"]
fn twenty_kills_lose_nothing_and_no_request_comes_too_early() {
    let (sites, shared, own) = (8, 80, 20);
    let fleet = Fleet::new(Database::shared(), Sites::start(sites));
    let machines: Vec<Machine> = (0..3).map(|_| fleet.machine()).collect();
    let rounds = crate::soak(20);
    let start = |machine: usize, job: &'static str| fleet.fetch(&machines[machine], &["--job", job]);
    let begin = |machine: usize, job: &str, count: usize| {
        let (input, machine) = (fleet.list(job, count), &machines[machine]);
        let member = fleet.fetch(machine, &["--input", &input, "--job", job, "--delay", "200ms"]);
        let sql = format!("SELECT tasks FROM {}.job WHERE name = '{job}'", fleet.schema);
        crate::database::wait_for_sql(fleet.database, &sql, &(count * sites).to_string());
        member
    };
    let (shared, own) = (shared * rounds / 20, own * rounds / 20);
    // On which machine each process runs, and its job.
    let places = [(0, "one"), (1, "one"), (2, "one"), (0, "a"), (1, "b")];
    let mut members: Vec<Member> = vec![begin(0, "one", shared)];
    members.extend([start(1, "one"), start(2, "one"), begin(0, "a", own), begin(1, "b", own)]);
    let mut random = fastrand::Rng::with_seed(now_us() as u64);
    let mut kills = 0;
    while kills < rounds {
        std::thread::sleep(Duration::from_millis(random.u64(500..2_500)));
        let nth = random.usize(..places.len());
        let next = start(places[nth].0, places[nth].1);
        let mut killed = std::mem::replace(&mut members[nth], next);
        let is_over = killed.process.is_over();
        assert!(!is_over || kills > rounds / 2, "the jobs are too short for twenty kills");
        kills += 1;
        fleet.kill(killed);
    }
    for (job, count) in [("one", shared), ("a", own), ("b", own)] {
        fleet.wait_for_job(job, count * sites);
    }
    for member in members {
        member.process.wait().expect(0);
    }
    fleet.judge(&Ruling { delay_ms: 200, urls: vec![("one", shared), ("a", own), ("b", own)] });
}
