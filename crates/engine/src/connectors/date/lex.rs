//! The words, numbers and signs of a date, and a place among them. What they mean is for the others to say.

/// One piece of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// Digits of ASCII.
    Number(&'t str),
    /// Letters, with what joins two of them: `quarta-feira`, `America/Los_Angeles`.
    Word(&'t str),
    /// `+`, `-` and its longer kin, `:`, `.`, `,`, `/`, or a bracket.
    Sign(char),
}

/// Tokens being read. A copy is a place to come back to.
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

    /// Whether all ends with a bracket.
    pub(super) fn is_bracket_last(&self) -> bool {
        self.text.trim_end().ends_with([')', ']'])
    }

    /// The next token, if there is one that may stand in a date.
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

    /// The next token if it stands right here, without a space before it.
    pub(super) fn next_close(&mut self) -> Option<Token<'t>> {
        let spaced = self.text.starts_with(char::is_whitespace);
        if spaced { None } else { self.next() }
    }

    /// Takes this sign, if it comes next.
    pub(super) fn sign(&mut self, sign: char) -> Option<()> {
        self.take(|tokens| (tokens.next()? == Token::Sign(sign)).then_some(()))
    }

    /// Takes this sign, if it stands right here.
    pub(super) fn close_sign(&mut self, sign: char) -> Option<()> {
        self.take(|tokens| (tokens.next_close()? == Token::Sign(sign)).then_some(()))
    }

    pub(super) fn word(&mut self) -> Option<&'t str> {
        self.take(|tokens| match tokens.next()? {
            Token::Word(word) => Some(word),
            _ => None,
        })
    }

    /// A number of at least and at most so many digits, and how many it has.
    pub(super) fn number(&mut self, digits: std::ops::RangeInclusive<usize>) -> Option<(i32, usize)> {
        self.take(|tokens| number(tokens.next()?, digits))
    }

    /// The same, if it stands right here.
    pub(super) fn close_number(&mut self, digits: std::ops::RangeInclusive<usize>) -> Option<(i32, usize)> {
        self.take(|tokens| number(tokens.next_close()?, digits))
    }

    /// What `read` makes of the next tokens. They stay where they are when it makes nothing of them.
    pub(super) fn take<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut tokens = *self;
        let made = read(&mut tokens)?;
        *self = tokens;
        Some(made)
    }
}

fn number(token: Token<'_>, digits: std::ops::RangeInclusive<usize>) -> Option<(i32, usize)> {
    match token {
        Token::Number(text) if digits.contains(&text.len()) => Some((text.parse().ok()?, text.len())),
        _ => None,
    }
}

/// How long the word is that `text` starts with. A sign joins letters only.
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

/// Marks that stand above letters belong to them.
fn is_letter(letter: char) -> bool {
    letter.is_alphabetic() || matches!(letter, '_' | '\u{300}'..='\u{36f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        let mut tokens = Tokens::new(text);
        let tokens = std::iter::from_fn(|| tokens.next()).map(|token| match token {
            Token::Number(text) | Token::Word(text) => text.to_owned(),
            Token::Sign(sign) => format!("'{sign}'"),
        });
        tokens.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_numbers_and_signs_are_told_apart() {
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
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn what_was_not_made_anything_of_stays() {
        let mut tokens = Tokens::new("12 :30 x");
        assert_eq!(tokens.word(), None);
        assert_eq!(tokens.number(3..=4), None);
        assert_eq!(tokens.number(1..=2), Some((12, 2)));
        assert_eq!(tokens.close_sign(':'), None);
        assert_eq!(tokens.sign(':'), Some(()));
        assert_eq!(tokens.close_number(1..=2), Some((30, 2)));
        assert!(!tokens.is_over());
        assert_eq!(tokens.word(), Some("x"));
        assert!(tokens.is_over());
    }
}
