//! A path pattern of a robots.txt: literal bytes, `*` for any bytes, and a final `$` for the end of the path.
//!
//! Which of several matching patterns wins is decided in [`super`].
//!
//! Patterns and paths are compared in the normalized form of RFC 9309 (section 2.2.2): bytes are percent-encoded only
//! if necessary, and in upper case, so that `/ü`, `/%C3%BC` and `/%c3%bc` are the same path, and so are `/a` and
//! `/%61`. Reserved characters (RFC 3986, section 2.2) stay as written, because `/a%2Fb` is one segment and `/a/b` two.
//! Only `*` and `$` are always encoded, so that `%2A` and `%24` in a pattern are literals (section 2.2.3). In a query,
//! `:`, `/`, `?` and `@` have no special meaning; [`Path`] tries both spellings of them.
//!
//! Matching is greedy, without backtracking: each literal is matched at the leftmost position after the previous one.
//! Each search is linear, so a match costs at most the length of the path plus that of the pattern.

use std::borrow::Cow;

use memchr::memmem;

use super::PATTERN_MAX;

/// A path pattern, ready to match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern {
    /// The literals, concatenated.
    octets: Box<[u8]>,
    /// The positions of the stars in `octets`.
    stars: Box<[u16]>,
    /// Whether the last literal must be at the end of the path.
    anchored: bool,
    /// The length of the pattern in bytes, in normalized form, including stars and `$`.
    len: u16,
}

impl Pattern {
    /// Parses a pattern. `None` if it is longer than [`PATTERN_MAX`], or if it starts with neither `/` nor `*` and so
    /// matches nothing.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (pattern, truncated) = Self::read_start(text)?;
        (!truncated).then_some(pattern)
    }

    /// Parses a pattern, truncated to [`PATTERN_MAX`] bytes if it is longer, which makes it match more.
    pub(super) fn read_truncated(text: &[u8]) -> Option<Self> {
        Self::read_start(text).map(|(pattern, _)| pattern)
    }

    /// How specific the pattern is: its length in bytes in normalized form.
    pub(super) fn len(&self) -> u16 {
        self.len
    }

    /// Whether `path` starts with this pattern. A search subtracts the length of the path from `work`.
    pub(super) fn matches(&self, path: &Path, work: &mut usize) -> bool {
        self.starts(&path.octets, work)
            || path.plain_query.as_ref().is_some_and(|octets| self.starts(octets, work))
    }

    fn starts(&self, path: &[u8], work: &mut usize) -> bool {
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

    /// The pattern truncated to [`PATTERN_MAX`] bytes, and whether there was more.
    fn read_start(text: &[u8]) -> Option<(Self, bool)> {
        let (b'/' | b'*', mut text) = (*text.first()?, text) else {
            return None;
        };
        let (mut octets, mut stars, mut anchored, mut len) = (Vec::new(), Vec::new(), false, 0);
        while !text.is_empty() {
            let (form, rest) = first(text);
            let form = if matches!(text, [b'*', ..] | [b'$']) { &text[..1] } else { &*form };
            if len + form.len() > PATTERN_MAX {
                break;
            }
            match text {
                [b'$'] => anchored = true,
                // A star directly after another only adds to the length.
                [b'*', ..] if stars.last() == Some(&(octets.len() as u16)) => {}
                [b'*', ..] => stars.push(octets.len() as u16),
                _ => octets.extend_from_slice(form),
            }
            len += form.len();
            text = rest;
        }
        let (octets, stars) = (octets.into_boxed_slice(), stars.into_boxed_slice());
        Some((Self { octets, stars, anchored, len: len as u16 }, !text.is_empty()))
    }
}

/// The path and query of a URL in normalized form.
pub(super) struct Path {
    octets: Vec<u8>,
    /// The same with `:`, `/`, `?` and `@` decoded in the query, if any of them is encoded there. A rule for
    /// `/?to=https://` also matches `/?to=https%3A%2F%2F`, as in the table of RFC 9309, section 2.2.2.
    plain_query: Option<Vec<u8>>,
}

impl Path {
    pub(super) fn read(mut text: &[u8]) -> Self {
        let mut octets = Vec::with_capacity(text.len());
        let (mut plain, mut in_query, mut differs) = (Vec::new(), false, false);
        while !text.is_empty() {
            let (form, rest) = first(text);
            if form.as_ref() == b"?" && !in_query {
                in_query = true;
                plain.clone_from(&octets);
            }
            octets.extend_from_slice(&form);
            if in_query {
                let separator = IN_QUERY.iter().find(|(encoded, _)| *encoded == form.as_ref());
                differs |= separator.is_some();
                plain.extend_from_slice(separator.map_or(&form, |(_, plain)| *plain));
            }
            text = rest;
        }
        Self { octets, plain_query: differs.then_some(plain) }
    }

    pub(super) fn is(&self, path: &[u8]) -> bool {
        self.octets == path
    }
}

/// The first byte of `text`, which must not be empty, in normalized form, and the text after it. A `%` without two
/// hexadecimal digits is a literal.
fn first(text: &[u8]) -> (Cow<'_, [u8]>, &[u8]) {
    let digit = |octet: u8| char::from(octet).to_digit(16).map(|digit| digit as u8);
    if let [b'%', high, low, rest @ ..] = text
        && let (Some(high), Some(low)) = (digit(*high), digit(*low))
    {
        let octet = high * 16 + low;
        return (if is_unreserved(octet) { Cow::Owned(vec![octet]) } else { encoded(octet) }, rest);
    }
    let (octet, rest) = (text[0], &text[1..]);
    (
        if is_unreserved(octet) || UNCHANGED.contains(&octet) {
            Cow::Borrowed(&text[..1])
        } else {
            encoded(octet)
        },
        rest,
    )
}

fn encoded(octet: u8) -> Cow<'static, [u8]> {
    Cow::Borrowed(percent_encoding::percent_encode_byte(octet).as_bytes())
}

/// RFC 3986, section 2.3.
fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~')
}

/// Characters that stay as written: the reserved ones except `*` and `$`, and a `%` that encodes nothing.
const UNCHANGED: &[u8] = b":/?#[]@!&'()+,;=%";
/// Characters without a special meaning in a query, encoded and decoded.
const IN_QUERY: [(&[u8], &[u8]); 4] = [(b"%3A", b":"), (b"%2F", b"/"), (b"%3F", b"?"), (b"%40", b"@")];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::read(pattern.as_bytes())
            .is_some_and(|pattern| pattern.matches(&Path::read(path.as_bytes()), &mut usize::MAX.clone()))
    }

    /// The definition, with backtracking: a star matches nothing, or one byte and then again.
    fn matches_by_definition(pattern: &[u8], path: &[u8]) -> bool {
        match (pattern, path) {
            ([], _) | ([b'$'], []) => true,
            ([b'*', after @ ..], []) => matches_by_definition(after, path),
            ([b'*', after @ ..], [_, rest @ ..]) => {
                matches_by_definition(after, path) || matches_by_definition(pattern, rest)
            }
            ([b'$'], _) | (_, []) => false,
            _ => {
                let (form, pattern) = first(pattern);
                path.strip_prefix(&*form).is_some_and(|rest| matches_by_definition(pattern, rest))
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

    /// The tables of RFC 9309, sections 2.2.2 and 2.2.3, and what follows from them.
    #[test]
    fn unnecessary_percent_encoding_makes_no_difference() {
        for (pattern, path) in [
            ("/foo/bar?baz=quz", "/foo/bar?baz=quz"),
            ("/foo/bar?baz=https://foo.bar", "/foo/bar?baz=https://foo.bar"),
            ("/foo/bar?baz=https://foo.bar", "/foo/bar?baz=https%3A%2F%2Ffoo.bar"),
            ("/foo/bar?baz=https%3A%2F%2Ffoo.bar", "/foo/bar?baz=https%3a%2f%2ffoo.bar"),
            ("/*=https://foo.bar", "/foo/bar?baz=https%3A%2F%2Ffoo.bar"),
            ("/foo/bar/ツ", "/foo/bar/%E3%83%84"),
            ("/foo/bar/%E3%83%84", "/foo/bar/%e3%83%84"),
            ("/foo/bar/%62%61%7A", "/foo/bar/baz"),
            ("/foo/bar/baz", "/foo/bar/%62%61%7a"),
            ("/path/file-with-a-%2A.html", "/path/file-with-a-*.html"),
            ("/path/file-with-a-%2A.html", "/path/file-with-a-%2a.html"),
            ("/path/foo-%24", "/path/foo-$"),
            ("/path/foo-%24", "/path/foo-%24"),
            ("/%7Euser", "/~user"),
            ("/50%", "/50%25"),
            ("/a b", "/a%20b"),
            ("/{x}|\"", "/%7Bx%7d%7C%22"),
            ("/%zz%", "/%zz%2"),
            ("/*%20", "/a b"),
            ("/*%", "/caf%C3%A9"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        assert!(!matches("/a-%2A", "/a-b"));
        assert!(!matches("/a%24", "/a"));
        assert!(!matches("/%2561", "/a"));
    }

    /// RFC 9309, section 2.2.2: an encoded reserved character differs from the character itself.
    #[test]
    fn reserved_characters_stay_encoded() {
        for reserved in ":/?#[]@!&'()+,;=".chars() {
            let encoded = format!("/a%{:02X}b", u32::from(reserved));
            let plain = format!("/a{reserved}b");
            assert!(matches(&encoded, &encoded) && matches(&encoded, &encoded.to_lowercase()), "{encoded}");
            assert!(matches(&plain, &plain), "{plain}");
            assert!(!matches(&encoded, &plain) && !matches(&plain, &encoded), "{encoded}");
        }
        assert!(!matches("/a/b", "/a%2Fb?c=%2F"));
        assert!(!matches("/?a=b&c", "/?a=b%26c") && !matches("/?a=b", "/?a%3Db"));
    }

    #[test]
    fn the_length_of_a_pattern_does_not_depend_on_its_spelling() {
        let len = |text: &str| Pattern::read(text.as_bytes()).unwrap().len();
        assert_eq!((len("/a"), len("/%61"), len("/%E3%83%84"), len("/ツ")), (2, 2, 10, 10));
        assert_eq!((len("/a*"), len("/a**$"), len("*"), len("/%2f"), len("/%24")), (3, 5, 1, 4, 4));
    }

    #[test]
    fn a_pattern_that_is_too_long_forbids_more_and_allows_less() {
        let fits = "/".repeat(PATTERN_MAX);
        let long = format!("{fits}x$");
        assert!(Pattern::read(fits.as_bytes()).is_some());
        assert_eq!(Pattern::read(long.as_bytes()), None);
        let cut = Pattern::read_truncated(long.as_bytes()).unwrap();
        assert_eq!(cut, Pattern::read(fits.as_bytes()).unwrap());
        assert!(cut.matches(&Path::read(format!("{fits}y").as_bytes()), &mut usize::MAX.clone()));
        // A percent-encoded byte is never cut in the middle.
        let cut = Pattern::read_truncated(format!("{}ü", &fits[1..]).as_bytes()).unwrap();
        assert_eq!(cut, Pattern::read(&fits.as_bytes()[1..]).unwrap());
    }

    #[test]
    fn a_search_is_counted_once_regardless_of_the_number_of_stars() {
        let spent = |pattern: &str| {
            let mut work = 1_000;
            Pattern::read(pattern.as_bytes()).unwrap().matches(&Path::read(&[b'/'; 300]), &mut work);
            1_000 - work
        };
        assert_eq!((spent("/a"), spent("/a*"), spent("/*"), spent("/*/*/*/*/*a")), (0, 0, 300, 300));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn greedy_matching_agrees_with_the_definition(pattern in "[/*][ab*]{0,7}[$]?", path in "/[ab]{0,12}") {
            let expected = matches_by_definition(pattern.as_bytes(), path.as_bytes());
            prop_assert_eq!(matches(&pattern, &path), expected);
        }

        #[test]
        fn special_bytes_agree_with_the_definition(
            pattern in "[/*]([a*$%2/]|%2A|%24|%61|%2F){0,6}",
            path in "/([a*$%2/]|%2a|%24|%61|%2f){0,6}",
        ) {
            let expected = matches_by_definition(pattern.as_bytes(), &Path::read(path.as_bytes()).octets);
            prop_assert_eq!(matches(&pattern, &path), expected);
        }

        /// Any path is a pattern for itself once `*` and `$` are encoded.
        #[test]
        fn a_path_matches_itself(path in "/\\PC{0,30}") {
            let pattern = path.replace('*', "%2A").replace('$', "%24");
            prop_assert!(matches(&pattern, &path));
            let whole = format!("{pattern}$");
            prop_assert!(matches(&whole, &path));
        }
    }
}
