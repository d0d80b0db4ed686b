//! Splits a date into words, numbers and signs. What they mean is decided elsewhere.

/// A token of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// ASCII digits.
    Number(&'t str),
    /// Letters, and signs that join letters: `quarta-feira`, `America/Los_Angeles`.
    Word(&'t str),
    /// `+`, `-` or a dash, `:`, `.`, `,`, `/`, or a bracket.
    Sign(char),
}

/// The remaining tokens. To backtrack, go back to a copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens<'t> {
    text: &'t str,
}

impl<'t> Tokens<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text }
    }

    pub(super) fn is_over(&self) -> bool {
        self.text.trim_start().is_empty()
    }

    /// Whether the text ends with a closing bracket.
    pub(super) fn ends_with_bracket(&self) -> bool {
        self.text.trim_end().ends_with([')', ']'])
    }

    /// The next token; `None` at the end, or if it is not allowed in a date.
    pub(super) fn next(&mut self) -> Option<Token<'t>> {
        self.text = self.text.trim_start();
        let first = self.text.chars().next()?;
        let length = match first {
            '0'..='9' => self.text.bytes().take_while(u8::is_ascii_digit).count(),
            _ if is_letter(first) => word_length(self.text),
            '+' | '-' | ':' | '.' | ',' | '/' | '(' | ')' | '[' | ']' | '–' | '—' | '−' => {
                first.len_utf8()
            }
            _ => return None,
        };
        let (token, rest) = self.text.split_at(length);
        self.text = rest;
        Some(match first {
            '0'..='9' => Token::Number(token),
            _ if is_letter(first) => Token::Word(token),
            '–' | '—' | '−' => Token::Sign('-'),
            _ => Token::Sign(first),
        })
    }

    /// The next token, if it follows without a space.
    pub(super) fn next_adjacent(&mut self) -> Option<Token<'t>> {
        let spaced = self.text.starts_with(char::is_whitespace);
        if spaced { None } else { self.next() }
    }

    /// Takes this sign, if it is next.
    pub(super) fn sign(&mut self, sign: char) -> Option<()> {
        self.take(|tokens| (tokens.next()? == Token::Sign(sign)).then_some(()))
    }

    /// Takes this sign, if it follows without a space.
    pub(super) fn adjacent_sign(&mut self, sign: char) -> Option<()> {
        self.take(|tokens| (tokens.next_adjacent()? == Token::Sign(sign)).then_some(()))
    }

    pub(super) fn word(&mut self) -> Option<&'t str> {
        self.take(|tokens| match tokens.next()? {
            Token::Word(word) => Some(word),
            _ => None,
        })
    }

    /// A number with this many digits, and how many it has.
    pub(super) fn number(&mut self, digits: std::ops::RangeInclusive<usize>) -> Option<(i32, usize)> {
        self.take(|tokens| number(tokens.next()?, digits))
    }

    /// The same, if it follows without a space.
    pub(super) fn adjacent_number(
        &mut self,
        digits: std::ops::RangeInclusive<usize>,
    ) -> Option<(i32, usize)> {
        self.take(|tokens| number(tokens.next_adjacent()?, digits))
    }

    /// Parses the next tokens with `read`. If it returns `None`, no tokens are consumed.
    pub(super) fn take<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut tokens = *self;
        let parsed = read(&mut tokens)?;
        *self = tokens;
        Some(parsed)
    }
}

fn number(token: Token<'_>, digits: std::ops::RangeInclusive<usize>) -> Option<(i32, usize)> {
    match token {
        Token::Number(text) if digits.contains(&text.len()) => Some((text.parse().ok()?, text.len())),
        _ => None,
    }
}

/// The length of the word that `text` starts with. Signs only belong to it between letters.
fn word_length(text: &str) -> usize {
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        let joins = matches!(letter, '-' | '/' | '\'' | '’')
            && letters.peek().is_some_and(|(_, next)| is_letter(*next));
        if !is_letter(letter) && !joins {
            return at;
        }
    }
    text.len()
}

/// Combining marks count as letters.
fn is_letter(letter: char) -> bool {
    letter.is_alphabetic() || matches!(letter, '_' | '\u{300}'..='\u{36f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> String {
        let mut tokens = Tokens::new(text);
        let tokens = std::iter::from_fn(|| tokens.next()).map(|token| match token {
            Token::Number(text) | Token::Word(text) => text.to_owned(),
            Token::Sign(sign) => format!("'{sign}'"),
        });
        tokens.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_numbers_and_signs_are_separated() {
        for (text, expected) in [
            ("Mar, 05 Nov 2024", "Mar ',' 05 Nov 2024"),
            ("05-Nov-24 1:55PM", "05 '-' Nov '-' 24 1 ':' 55 PM"),
            ("2024-11-05T12:00:00.5Z", "2024 '-' 11 '-' 05 T 12 ':' 00 ':' 00 '.' 5 Z"),
            ("GMT-07:00 America/Port-au-Prince", "GMT '-' 07 ':' 00 America/Port-au-Prince"),
            ("Etc/GMT+5 quarta-feira -a- /b", "Etc/GMT '+' 5 quarta-feira '-' a '-' '/' b"),
            ("1 – 2 е\u{301} 年", "1 '-' 2 е\u{301} 年"),
            ("5 ٣", "5"),
            ("", ""),
        ] {
            assert_eq!(tokens(text), expected, "{text}");
        }
    }

    #[test]
    fn unparsed_tokens_are_not_consumed() {
        let mut tokens = Tokens::new("12 :30 x");
        assert_eq!(tokens.word(), None);
        assert_eq!(tokens.number(3..=4), None);
        assert_eq!(tokens.number(1..=2), Some((12, 2)));
        assert_eq!(tokens.adjacent_sign(':'), None);
        assert_eq!(tokens.sign(':'), Some(()));
        assert_eq!(tokens.adjacent_number(1..=2), Some((30, 2)));
        assert!(!tokens.is_over());
        assert_eq!(tokens.word(), Some("x"));
        assert!(tokens.is_over());
    }
}
