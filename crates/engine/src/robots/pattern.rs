//! One path pattern of a robots.txt: literal octets, `*` for any octets, and `$` at the end for the end.
//!
//! Which of several matching patterns wins is decided in [`super`].
//!
//! Patterns and paths are compared by the octets they stand for: percent-encoding is taken off both, so that
//! `/ü`, `/%C3%BC` and `/%c3%bc` are one path, and so are `=` and `%3D`. RFC 9309 (section 2.2.2) says the same
//! the other way round and puts percent-encoding on. Only a `*` or `$` that is written out is special; `%2A`
//! and `%24` stand for themselves.
//!
//! Matching is greedy: each literal goes to the leftmost place after the one before, and no choice is ever
//! taken back. Each search is linear, so a match costs at most the length of the path plus that of the pattern.

use memchr::memmem;

use super::PATTERN_MAX;

/// A path pattern, ready to match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern {
    /// The literals, one after the other.
    octets: Box<[u8]>,
    /// Where in `octets` a `*` stands.
    stars: Box<[u16]>,
    /// Whether the last literal has to end the path.
    anchored: bool,
    /// How many octets the pattern had, stars and `$` included.
    len: u16,
}

impl Pattern {
    /// Reads a pattern. `None`: it starts with neither `/` nor `*`, or is empty, and so matches nothing; or it
    /// is longer than [`PATTERN_MAX`].
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (pattern, cut) = Self::read_start(text)?;
        (!cut).then_some(pattern)
    }

    /// Reads a pattern, or of one that is too long its first [`PATTERN_MAX`] octets, which match more.
    pub(super) fn read_cut(text: &[u8]) -> Option<Self> {
        Self::read_start(text).map(|(pattern, _)| pattern)
    }

    /// How specific the pattern is: how many octets it had, percent-encoded ones counted once.
    pub(super) fn len(&self) -> u16 {
        self.len
    }

    /// Whether the octets of `path` start with this pattern. A search takes the length of the path off `work`.
    pub(super) fn matches(&self, path: &[u8], work: &mut usize) -> bool {
        let Some((first_end, stars)) = self.stars.split_first() else {
            return if self.anchored { *path == *self.octets } else { path.starts_with(&self.octets) };
        };
        let mut start = usize::from(*first_end);
        let Some(mut rest) = path.strip_prefix(&self.octets[..start]) else {
            return false;
        };
        *work = work.saturating_sub(path.len());
        for star in stars {
            let literal = &self.octets[start..usize::from(*star)];
            let Some(at) = memmem::find(rest, literal) else {
                return false;
            };
            rest = &rest[at + literal.len()..];
            start = usize::from(*star);
        }
        let last = &self.octets[start..];
        if self.anchored { rest.ends_with(last) } else { memmem::find(rest, last).is_some() }
    }

    /// The pattern of at most [`PATTERN_MAX`] octets that `text` starts with, and whether there was more.
    fn read_start(text: &[u8]) -> Option<(Self, bool)> {
        let (b'/' | b'*', mut text) = (*text.first()?, text) else {
            return None;
        };
        let (mut octets, mut stars, mut anchored, mut len) = (Vec::new(), Vec::new(), false, 0);
        while len < PATTERN_MAX && !text.is_empty() {
            let (octet, rest) = first_octet(text);
            match text {
                [b'$'] => anchored = true,
                // A star right after another adds nothing but its octet.
                [b'*', ..] if stars.last() == Some(&(octets.len() as u16)) => {}
                [b'*', ..] => stars.push(octets.len() as u16),
                _ => octets.push(octet),
            }
            text = rest;
            len += 1;
        }
        let (octets, stars) = (octets.into_boxed_slice(), stars.into_boxed_slice());
        Some((Self { octets, stars, anchored, len: len as u16 }, !text.is_empty()))
    }
}

/// The octets that `path` stands for.
pub(super) fn decode(mut path: &[u8]) -> Vec<u8> {
    let mut octets = Vec::with_capacity(path.len());
    while !path.is_empty() {
        let (octet, rest) = first_octet(path);
        octets.push(octet);
        path = rest;
    }
    octets
}

/// The octet that `text`, which is not empty, starts with, and the text after it. A `%` without two hexadecimal
/// digits stands for itself.
fn first_octet(text: &[u8]) -> (u8, &[u8]) {
    let digit = |octet: u8| char::from(octet).to_digit(16).map(|digit| digit as u8);
    if let [b'%', high, low, rest @ ..] = text
        && let (Some(high), Some(low)) = (digit(*high), digit(*low))
    {
        return (high * 16 + low, rest);
    }
    (text[0], &text[1..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::read(pattern.as_bytes())
            .is_some_and(|pattern| pattern.matches(&decode(path.as_bytes()), &mut usize::MAX.clone()))
    }

    /// The definition, tried out every way: a star takes nothing, or one octet and stays.
    fn matches_by_definition(pattern: &[u8], path: &[u8]) -> bool {
        match (pattern, path) {
            ([], _) | ([b'$'], []) => true,
            ([b'*', after @ ..], []) => matches_by_definition(after, path),
            ([b'*', after @ ..], [_, rest @ ..]) => {
                matches_by_definition(after, path) || matches_by_definition(pattern, rest)
            }
            ([b'$'], _) | (_, []) => false,
            (_, [octet, rest @ ..]) => {
                let (expected, pattern) = first_octet(pattern);
                expected == *octet && matches_by_definition(pattern, rest)
            }
        }
    }

    #[test]
    fn patterns_match_from_the_start() {
        for (pattern, yes, no) in [
            ("/", "/ /a /?q", ""),
            ("/fish", "/fish /fish.html /fish/salmon /fishheads /fish?id=1", "/Fish /catfish /?id=fish"),
            ("/fish*", "/fish /fishheads", "/Fish"),
            ("/fish/", "/fish/ /fish/?id /fish/salmon", "/fish /fish.html"),
            ("/*.php", "/index.php /a/b.php?x /a.php5 /.php", "/ /windows.PHP"),
            ("/*.php$", "/a.php /a/b.php", "/a.php?x /a.php/ /a.php5"),
            ("/fish*.php", "/fish.php /fishheads/cat.php?x", "/Fish.PHP /fish.ph"),
            ("/a$", "/a", "/ /ab /a$"),
            ("/a$b", "/a$b /a$bc", "/a"),
            ("*", "/ /a", ""),
            ("*a", "/a /ba", "/"),
            ("/***a", "/a /ba", "/"),
            ("/*$", "/ /a", ""),
            ("/*aab*b$", "/aaabb /aabab", "/aab /aaba"),
            ("fish", "", "/fish fish"),
            ("$", "", "/"),
        ] {
            assert!(yes.split_whitespace().all(|path| matches(pattern, path)), "{pattern}");
            assert!(!no.split_whitespace().any(|path| matches(pattern, path)), "{pattern}");
        }
        assert!(!matches("", "/"));
    }

    /// The table of RFC 9309, section 2.2.2, and what follows from it.
    #[test]
    fn percent_encoding_makes_no_difference() {
        for (pattern, path) in [
            ("/foo/bar?baz=quz", "/foo/bar?baz=quz"),
            ("/foo/bar?baz=https://foo.bar", "/foo/bar?baz=https%3A%2F%2Ffoo.bar"),
            ("/foo/bar/ツ", "/foo/bar/%E3%83%84"),
            ("/foo/bar/%E3%83%84", "/foo/bar/%e3%83%84"),
            ("/foo/bar/%62%61%7A", "/foo/bar/baz"),
            ("/foo/bar/baz", "/foo/bar/%62%61%7a"),
            ("/path/file-with-a-%2A.html", "/path/file-with-a-*.html"),
            ("/path/foo-%24", "/path/foo-$"),
            ("/50%", "/50%25"),
            ("/a b", "/a%20b"),
            ("/%zz%", "/%zz%2"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        assert!(!matches("/a-%2A", "/a-b"));
        assert!(!matches("/a%24", "/a"));
        // Half of an encoded octet is nothing that could be found.
        assert!(!matches("/*E3", "/%E3"));
        assert!(!matches("/%2561", "/a"));
    }

    #[test]
    fn specific_means_many_octets_however_they_are_written() {
        let len = |text: &str| Pattern::read(text.as_bytes()).unwrap().len();
        assert_eq!((len("/a"), len("/%61"), len("/%E3%83%84"), len("/ツ")), (2, 2, 4, 4));
        assert_eq!((len("/a*"), len("/a**$"), len("*")), (3, 5, 1));
    }

    #[test]
    fn too_long_a_pattern_forbids_more_and_allows_less() {
        let fits = "/".repeat(PATTERN_MAX);
        let long = format!("{fits}x$");
        assert!(Pattern::read(fits.as_bytes()).is_some());
        assert_eq!(Pattern::read(long.as_bytes()), None);
        let cut = Pattern::read_cut(long.as_bytes()).unwrap();
        assert_eq!(cut, Pattern::read(fits.as_bytes()).unwrap());
        assert!(cut.matches(format!("{fits}y").as_bytes(), &mut usize::MAX.clone()));
    }

    #[test]
    fn a_search_is_paid_for_once_however_many_stars_it_has() {
        let spent = |pattern: &str| {
            let mut work = 1_000;
            Pattern::read(pattern.as_bytes()).unwrap().matches(&[b'/'; 300], &mut work);
            1_000 - work
        };
        assert_eq!((spent("/a"), spent("/a*"), spent("/*"), spent("/*/*/*/*/*a")), (0, 0, 300, 300));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn greedy_matching_keeps_the_definition(pattern in "[/*][ab*]{0,7}[$]?", path in "/[ab]{0,12}") {
            let expected = matches_by_definition(pattern.as_bytes(), path.as_bytes());
            prop_assert_eq!(matches(&pattern, &path), expected);
        }

        #[test]
        fn odd_octets_keep_the_definition(
            pattern in "[/*]([a*$%2]|%2A|%24|%61){0,6}",
            path in "/([a*$%2]|%2a|%24|%61){0,6}",
        ) {
            let expected = matches_by_definition(pattern.as_bytes(), &decode(path.as_bytes()));
            prop_assert_eq!(matches(&pattern, &path), expected);
        }
    }
}
