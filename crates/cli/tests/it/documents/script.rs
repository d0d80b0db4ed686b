//! Turns a code block into a bash script.

/// The script. Its variables and working directory are kept for the next one, as in one terminal.
pub(super) fn script(block: &str, port: u16) -> String {
    let block = block.replace("7878", &port.to_string()).replace("0.0.0.0", "127.0.0.1");
    let mut lines: Vec<String> = Vec::new();
    for line in block.lines() {
        if line.starts_with("^C") {
            let before = lines.pop().unwrap_or_default();
            lines.push(format!("__interrupted {before}"));
        } else if builds(line) {
            lines.push(":".to_owned());
        } else if stays(line) {
            let command = line.split(" #").next().unwrap_or(line).trim_end().trim_end_matches('&');
            lines.push(format!("__stays {command}"));
        } else {
            lines.push(line.to_owned());
        }
    }
    format!("{PRELUDE}{}\n", lines.join("\n")).replace("PORT", &port.to_string())
}

/// Whether a command builds or installs something, and is skipped.
pub(super) fn builds(line: &str) -> bool {
    BUILDS.iter().any(|build| line.starts_with(build))
}

/// Whether a command keeps running.
fn stays(line: &str) -> bool {
    let line = line.trim();
    let serves = line.starts_with("comity serve") && !line.contains("--make-token");
    let watches = line.starts_with("comity run") && line.contains("--watch");
    serves || watches || line.starts_with("comity playground") || line.starts_with("comity top")
}

/// Commands that build or install: other tests cover them, or they would change this machine.
const BUILDS: [&str; 6] = ["cargo ", "./test", "pip install", "apt install", "sudo ", "php maintenance/"];

/// The service uses another port than the page says.
const PRELUDE: &str = r#"set -aeu
[ ! -e "$HOME/.environment" ] || source "$HOME/.environment"
[ ! -e "$HOME/.folder" ] || cd "$(cat "$HOME/.folder")"
trap 'export -p | grep -v "COMITY_DEFAULT_\|COMITY_SCRAPE_MIN" >"$HOME/.environment"; pwd >"$HOME/.folder"' EXIT
__stays() {
    "$@" >>"$HOME/.stays.log" 2>&1 </dev/null &
    echo $! >>"$HOME/.stays"
    case "$*" in *serve*) ;; *) return 0 ;; esac
    for _ in $(seq 200); do
        if (: </dev/tcp/127.0.0.1/PORT) 2>/dev/null; then return 0; fi
        sleep 0.05
    done
    cat "$HOME/.stays.log" >&2
    return 1
}
__interrupted() {
    local code=0
    timeout --preserve-status --signal=INT 1 "$@" || code=$?
    [ "$code" = 130 ]
}
"#;

#[test]
fn servers_and_builds_are_recognized() {
    let written = script(
        "cargo install x\ncomity serve   # a service\ncomity serve --make-token use\ncomity fetch a\n^C  # stop\ncurl localhost:7878",
        9,
    );
    let lines: Vec<&str> = written.lines().skip_while(|line| *line != ":").collect();
    assert_eq!(
        lines,
        [
            ":",
            "__stays comity serve",
            "comity serve --make-token use",
            "__interrupted comity fetch a",
            "curl localhost:9"
        ]
    );
}
