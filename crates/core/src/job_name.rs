//! What a job may be called. The names of existing jobs are never checked: those of older versions stay usable.

/// Where a new job comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// Somebody typed its name.
    Command,
    /// A program chose its name, and uses it in the paths of URLs.
    Service,
}

/// Checks the name of a new job. It is used in file names, shell commands and URLs; the error says what is allowed.
pub fn check(name: &str, by: NamedBy) -> Result<(), &'static str> {
    let (is_letter, is_joint, expected): (fn(char) -> bool, &[char], _) = match by {
        NamedBy::Command => (char::is_alphanumeric, &['.', '_', '-', ' '], TYPED),
        // The same, without what has to be escaped in a URL.
        NamedBy::Service => (|c| c.is_ascii_alphanumeric(), &['.', '_', '-'], IN_URLS),
    };
    let starts_well = name.starts_with(is_letter);
    let fits = starts_well
        && name.len() <= NAME_MAX
        && name.chars().all(|c| is_letter(c) || is_joint.contains(&c))
        && !name.ends_with(' ');
    if fits { Ok(()) } else { Err(expected) }
}

const TYPED: &str =
    "1 to 200 letters, digits, spaces, \".\", \"_\" or \"-\", starting with a letter or digit";
const IN_URLS: &str = "1 to 200 letters, digits, \".\", \"_\" or \"-\", starting with a letter or digit";
/// The maximum length in bytes.
const NAME_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_be_mistaken_for_paths_flags_or_anything_else() {
        let long = "n".repeat(201);
        for name in [
            "",
            " ",
            " a",
            "a ",
            "..",
            ".hidden",
            "-x",
            "a/b",
            "../../esc",
            "a\\b",
            "a:b",
            "a\nb",
            "a\u{1b}[31m",
            "a\u{202e}b",
            "a\0b",
            "$(x)",
            &long,
        ] {
            assert_eq!(check(name, NamedBy::Command), Err(TYPED), "{name:?}");
            assert_eq!(check(name, NamedBy::Service), Err(IN_URLS), "{name:?}");
        }
        for name in ["a", "7", "news-2026.11_x", "fetch-20261119-1", "a..b", &long[1..]] {
            assert_eq!(
                (check(name, NamedBy::Command), check(name, NamedBy::Service)),
                (Ok(()), Ok(())),
                "{name}"
            );
        }
        for name in ["größe 2", "é", "日本"] {
            assert_eq!(check(name, NamedBy::Command), Ok(()), "{name}");
            assert_eq!(check(name, NamedBy::Service), Err(IN_URLS), "{name}");
        }
    }
}
