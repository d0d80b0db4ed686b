//! Completions and manual pages, tested with bash and groff.

use std::process::Command;

use crate::comity::World;

/// Bash loads the script, and completes commands, flags and values with it.
#[test]
fn bash_completes_commands_flags_and_values() {
    let world = World::new();
    let script = world.write("comity.bash", &world.run(&["completions", "bash"]).expect(0).stdout);
    assert!(Command::new("bash").arg("-n").arg(&script).status().unwrap().success());
    let complete = |words: &str| {
        let typed = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _comity comity \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let done = Command::new("bash").args(["-c", &typed]).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    assert_eq!(complete("comity fe"), "fetch");
    assert_eq!(complete("comity sources cadence s"), "set");
    assert_eq!(complete("comity fetch --inp"), "--input");
    assert_eq!(complete("comity items list --state fa"), "failed");
    assert!(complete("comity completions ''").contains("zsh"));
}

#[test]
fn other_shells_have_scripts_too() {
    let world = World::new();
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        world.run(&["completions", shell]).expect(0).shows("wiki");
    }
    world.run(&["completions", "tcsh"]).expect(2).says("bash");
}

/// Every command has a page that groff formats without warnings, with its examples line by line.
#[test]
fn manual_pages_are_formatted_without_warnings() {
    let world = World::new();
    let written = world.run(&["--json", "man", "man/man1"]).expect(0).json();
    let pages: Vec<&str> =
        written["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    assert!(
        pages.len() > 40 && pages.contains(&"comity.1") && pages.contains(&"comity-sources-cadence-set.1"),
        "{pages:?}"
    );
    for page in pages {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tutf8", "-K", "utf8", "-ww", "-P-cbu"]).arg(world.path("man/man1").join(page));
        let set =
            groff.output().unwrap_or_else(|error| panic!("groff: {error}; ./test installs what is missing"));
        let (text, said) = (String::from_utf8_lossy(&set.stdout), String::from_utf8_lossy(&set.stderr));
        assert!(set.status.success() && said.is_empty(), "{page}: {said}");
        assert!(text.contains("EXAMPLES"), "{page}");
    }
    let fetch = std::fs::read_to_string(world.path("man/man1/comity-fetch.1")).unwrap();
    assert!(fetch.contains(".nf\n\\fBcomity fetch https://example.org/a https://example.org/b"), "{fetch}");
    world.write("taken", "");
    world.run(&["man", "taken/man1"]).expect(1).says("taken/man1");
}
