//! A transaction that somebody holds open for the whole run, so that nothing can be vacuumed.

use std::io::Write;
use std::process::Stdio;

use crate::database::Database;
use crate::fleet::Fleet;
use crate::sites::Sites;

/// B9
#[test]
#[ignore = "./test fleet"]
fn a_transaction_held_open_all_the_time_stops_nobody() {
    let fleet = Fleet::new(Database::shared(), Sites::start(4));
    let mut session =
        fleet.database.psql().arg("postgres").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = session.stdin.take().unwrap();
    let look =
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM {}.task;\n", fleet.schema);
    input.write_all(look.as_bytes()).unwrap();
    let mut answer = [0; 2];
    std::io::Read::read_exact(session.stdout.as_mut().unwrap(), &mut answer).unwrap();
    let (one, other) = (fleet.machine(), fleet.machine());
    let urls = (50, 30);
    fleet.direct_team(&one, &other, urls).finish(&fleet);
    fleet.judge_team(urls);
    drop(input);
    session.wait().unwrap();
}
