//! Masks values that must not be shown: the password of a store, and the values of unknown keys that may be secrets.

use std::fmt;
use std::path::Path;

/// The URL of a store: `sqlite:FILE`, `memory:` or `postgres://…`. The password is masked
/// when the URL is displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// Parses a URL; `None` if it is none of the three kinds.
    pub fn parse(text: &str) -> Option<Self> {
        let kind = text.strip_prefix("sqlite:").or_else(|| text.strip_prefix("postgres://"));
        let rest = kind.or_else(|| text.strip_prefix("postgresql://"));
        let named = rest.is_some_and(|rest| !rest.trim().is_empty());
        let known = named || text == "memory:";
        (known && !text.contains(char::is_control)).then(|| Self(text.to_owned()))
    }

    /// The whole URL including the password, for opening the store.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// SQLite in the working directory.
impl Default for StoreUrl {
    fn default() -> Self {
        Self("sqlite:comity.db".to_owned())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", without_password(&self.0))
    }
}

/// `url` with passwords masked: `postgres://user:***@host`, and `***` for the value of every `password=`.
///
/// Text that is not a valid URL is masked too; if in doubt, too much is masked rather than too little.
pub fn without_password(url: &str) -> String {
    let start = url.find("://").map_or(0, |scheme| scheme + 3);
    let (scheme, rest) = url.split_at(start);
    // A password may contain an @ that should have been percent-encoded, so the last @ counts.
    let userinfo = rest.rfind('@').and_then(|at| Some((rest[..at].find(':')?, at)));
    let masked = match userinfo {
        Some((colon, at)) => format!("{scheme}{}:***{}", &rest[..colon], &rest[at..]),
        None => url.to_owned(),
    };
    without_parameter(&masked)
}

/// A warning if every user of the machine can read the file at `path`, which contains secrets.
pub fn exposure_warning(path: &Path) -> Option<String> {
    let shown = path.display();
    can_others_read(path).then(|| {
        format!(
            "{shown} contains secrets and can be read by every user of this machine; run: chmod o-rwx {shown}"
        )
    })
}

#[cfg(unix)]
fn can_others_read(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    // Anything but a regular file, such as a pipe, does not stay there to be read by others.
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn can_others_read(_path: &Path) -> bool {
    false
}

/// Whether the text of a configuration file contains a password. Tokens don't count, as they are hashes.
pub fn has_password(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    let mut values = lines.flat_map(|line| line.split(['"', '\'']));
    values.any(|value| value.contains("://") && without_password(value) != value)
}

/// Whether the name of a key suggests that its value is a secret.
pub(super) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let name = key.rsplit(['.', ' ']).next().unwrap_or(&key);
    SECRETS.iter().any(|word| name.contains(word))
}

fn without_parameter(text: &str) -> String {
    // Lowercasing ASCII does not move any byte.
    let lower = text.to_ascii_lowercase();
    let (mut shown, mut from) = (String::new(), 0);
    while let Some(found) = lower[from..].find(PARAMETER) {
        let value = from + found + PARAMETER.len();
        let end = text[value..].find(['&', '#', '"']).map_or(text.len(), |length| value + length);
        shown.push_str(&text[from..value]);
        shown.push_str("***");
        from = end;
    }
    shown.push_str(&text[from..]);
    shown
}

const PARAMETER: &str = "password=";
const SECRETS: [&str; 8] =
    ["password", "passwd", "secret", "token", "credential", "auth", "cookie", "api_key"];

#[cfg(test)]
mod tests {
    use super::*;

    /// B75
    #[test]
    fn a_password_in_a_configuration_is_detected() {
        for (text, expected) in [
            ("store = \"postgres://user:secret@host/db\"", true),
            ("proxy = 'http://me:secret@proxy:3128'", true),
            ("# store = \"postgres://user:secret@host/db\"", false),
            ("contact = \"https://example.org/bot\"\nstore = \"sqlite:comity.db\"", false),
            ("tokens = [\"use:sha256:00\"]\ncontact = \"me@example.org\"", false),
        ] {
            assert_eq!(has_password(text), expected, "{text}");
        }
    }

    /// B75
    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("postgres://user:pw@host/db", "postgres://user:***@host/db"),
            ("postgres://user:p@w/?#:@host:5432/db", "postgres://user:***@host:5432/db"),
            ("postgres://user@host:5432/db", "postgres://user@host:5432/db"),
            ("postgres://h/db?user=u&Password=pw&x=1", "postgres://h/db?user=u&Password=***&x=1"),
            ("postgres://h/db?sslpassword=a&password=b", "postgres://h/db?sslpassword=***&password=***"),
            ("user:pw@host", "user:***@host"),
            ("sqlite:comity.db", "sqlite:comity.db"),
            ("é:ü@ö", "é:***@ö"),
            ("", ""),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
        let url = StoreUrl::parse("postgres://user:pw@host/db").unwrap();
        assert_eq!(format!("{url} {url:?}"), "postgres://user:***@host/db \"postgres://user:***@host/db\"");
        assert_eq!(url.as_str(), "postgres://user:pw@host/db");
    }

    #[test]
    fn a_store_url_is_one_of_three_kinds() {
        for url in ["sqlite:a.db", "sqlite:/var/lib/a.db", "postgres://h/d", "postgresql://h/d", "memory:"] {
            assert!(StoreUrl::parse(url).is_some(), "{url}");
        }
        for url in ["", "a.db", "sqlite:", "sqlite: ", "postgres:", "postgres://", "mysql://h", "sqlite:a\nb"]
        {
            assert!(StoreUrl::parse(url).is_none(), "{url:?}");
        }
    }
}
