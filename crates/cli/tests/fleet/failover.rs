//! A standby that lags is promoted: commits of the last seconds are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::database::{Database, Options};
use crate::fleet::{Fleet, UNSAVED_US};
use crate::judge::Ruling;
use crate::log::{now_us, wait_until};
use crate::machines::{Hub, Machine};
use crate::site::Answer;
use crate::sites::Sites;

/// B9, B74, B77: processes that worked before, one that starts just after, and one that then dies with the deadlines it was
/// told: none of them sends too early.
#[test]
#[ignore = "./test fleet"]
fn a_failover_that_loses_commits_costs_time_but_no_request_comes_too_early() {
    let primary = Database::start(&Options { settings: "wal_keep_size = 64", ..Options::default() });
    let limits = Arc::new(AtomicBool::new(false));
    let limiting = limits.clone();
    let sites = Sites::answering(6, move |path, before, _| {
        let is_limited = limiting.load(Ordering::Relaxed) && before % 7 == 3;
        if is_limited { Answer::status(429).header("Retry-After", "25") } else { Answer::page(path) }
    });
    let fleet = Fleet::new(&primary, sites);
    let standby = primary.standby();
    let (one, other, late) = (fleet.machine(), fleet.machine(), fleet.machine());
    // Namespaces reach both servers; on loopback, there is no proxy in front.
    let hosts = |_: &Machine| {
        let host = &Hub::get().databases;
        fleet.url(&format!("{host}:{},{host}:{}", primary.port, standby.port))
    };
    let urls = (50, 30);
    let team = fleet.team([&one, &other], [&hosts(&one), &hosts(&other)], urls);
    let caught_up = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '{}'";
    let lsn = primary.sql("SELECT pg_current_wal_lsn()");
    wait_until("the standby follows", || primary.sql(&caught_up.replace("{}", &lsn)) == "1");
    // From here on, the standby gets nothing.
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("SELECT pg_reload_conf()");
    let lost_from = now_us();
    std::thread::sleep(Duration::from_secs(1));
    limits.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(4));
    limits.store(false, Ordering::Relaxed);
    primary.control(&["stop", "-m", "immediate"]);
    standby.control(&["promote"]);
    fleet.note_fault("*", now_us() - lost_from + UNSAVED_US, 20_000_000);
    let third = fleet.fetch_from(&late, &hosts(&late), &["--job", "one"]);
    // Whoever was told a deadline has saved it again before others may take its sites.
    std::thread::sleep(Duration::from_secs(6));
    let fleet = Fleet { database: &standby, ..fleet };
    team.finish_without_first(&fleet);
    third.process.wait().expect(0);
    for (domain, visits) in fleet.sites.logs() {
        for pair in visits.windows(2).filter(|pair| pair[0].status == 429) {
            let gap = pair[1].at - pair[0].at;
            assert!(gap >= 25_000_000, "{domain}: {gap} µs after a Retry-After of 25 s: {pair:?}");
        }
    }
    let (one, two) = urls;
    fleet.judge_by_logs(&Ruling { delay_ms: 200, urls: vec![("one", one), ("two", two)] });
}
