//! Lines for cron and units for systemd, read the way cron and systemd read them.

use std::path::Path;
use std::process::Command;

/// The command of a crontab line, to run in the folder of the page; none if cron would reject the line.
pub(super) fn cron(line: &str) -> Option<String> {
    let mut rest = line;
    for _ in 0..5 {
        let (field, after) = rest.trim_start().split_once(' ')?;
        let fits = field.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c));
        rest = (!field.is_empty() && fits).then_some(after)?;
    }
    let command = rest.trim();
    // To cron, a percent sign is a line break.
    let whole = !command.is_empty() && !command.replace("\\%", "").contains('%');
    let command = command
        .strip_prefix("cd /")
        .map_or(command, |after| after.split_once(" && ").map_or(command, |(_, command)| command));
    whole.then(|| command.replace("\\%", "%"))
}

/// A unit with the program and the folders of this machine.
pub(super) fn here(unit: &str, folder: &Path) -> String {
    unit.replace("/usr/local/bin/comity", env!("CARGO_BIN_EXE_comity"))
        .replace("/srv/", &format!("{}/", folder.display()))
}

/// Asks systemd whether a unit is valid.
pub(crate) fn verify(unit: &Path) -> Result<(), String> {
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(unit);
    let done = command
        .output()
        .map_err(|error| format!("systemd-analyze: {error}; ./test installs what is missing"))?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let name = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let about: Vec<&str> = said.lines().filter(|line| line.contains(&name)).collect();
    if done.status.success() && about.is_empty() { Ok(()) } else { Err(said) }
}

#[test]
fn a_crontab_line_is_five_times_and_a_command() {
    assert_eq!(cron("7 * * * *  cd /srv/news && comity run").as_deref(), Some("comity run"));
    assert_eq!(cron("*/5 1-3 * * 0,6 comity run").as_deref(), Some("comity run"));
    assert_eq!(cron("hourly comity run"), None);
    assert_eq!(cron("7 * * * * date +%F"), None);
    assert_eq!(cron("7 * * * * date +\\%F").as_deref(), Some("date +%F"));
}
