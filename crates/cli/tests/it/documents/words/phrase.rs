//! Patterns of words, which match across line breaks but not across the end of a sentence.
//!
//! A pattern is a few words. `a|b` is either of two words, `_` any word, `#` any number, `$` the end of a sentence, and `!a` in front
//! means that the word before must not be `a`. Upper and lower case are the same.

use super::text::{END, Word};

/// A pattern that was parsed.
pub(super) struct Phrase {
    /// Words that must not come right before it.
    not_after: Vec<String>,
    words: Vec<Vec<String>>,
}

impl Phrase {
    pub(super) fn new(pattern: &str) -> Self {
        let alternatives = |part: &str| part.split('|').map(str::to_lowercase).collect::<Vec<_>>();
        let mut phrase = Self { not_after: Vec::new(), words: Vec::new() };
        for part in pattern.split(' ') {
            match part.strip_prefix('!') {
                Some(not) => phrase.not_after = alternatives(not),
                None => phrase.words.push(alternatives(part)),
            }
        }
        phrase
    }

    /// Where it occurs: the line of its first word, and the words as they stand there.
    pub(super) fn find(&self, words: &[Word]) -> Vec<(usize, String)> {
        let shown = |start: usize| {
            let found = words[start..][..self.words.len()].iter().map(|word| word.text.as_str());
            (words[start].line, found.filter(|word| *word != END).collect::<Vec<_>>().join(" "))
        };
        self.places(words).into_iter().map(shown).collect()
    }

    /// Takes its words out wherever it occurs, and returns how often that is.
    pub(super) fn hide(&self, words: &mut [Word]) -> usize {
        let places = self.places(words);
        for start in &places {
            for word in &mut words[*start..][..self.words.len()] {
                END.clone_into(&mut word.text);
            }
        }
        places.len()
    }

    /// The indexes of its first word.
    fn places(&self, words: &[Word]) -> Vec<usize> {
        let starts = 0..words.len().saturating_sub(self.words.len() - 1);
        let here = |start: &usize| {
            let before = start.checked_sub(1).map(|before| &words[before].text);
            let is_free = before.is_none_or(|before| !self.not_after.contains(before));
            is_free && self.words.iter().zip(&words[*start..]).all(|(wanted, word)| fits(wanted, &word.text))
        };
        starts.filter(here).collect()
    }
}

fn fits(wanted: &[String], word: &str) -> bool {
    wanted.iter().any(|wanted| match wanted.as_str() {
        "_" => word != END,
        "#" => word.chars().all(|c| c.is_ascii_digit() || c == ','),
        "$" => word == END,
        wanted => wanted == word,
    })
}

#[test]
fn a_phrase_is_found_across_lines_but_not_across_sentences() {
    let find = |pattern: &str, text: &str| Phrase::new(pattern).find(&super::text::words(text, 1));
    assert_eq!(
        find("a second and site", "one\nrequest a Second\nand site"),
        [(2, "a second and site".to_owned())]
    );
    assert_eq!(find("a second and site", "It takes a second. And site"), []);
    assert_eq!(
        find("!there is|are no url|urls", "there is no URL; 3 are no URLs"),
        [(1, "are no urls".to_owned())]
    );
    assert_eq!(find("slower one goes $", "the slower one goes to x"), []);
    assert_eq!(find("slower one goes $", "the slower one goes."), [(1, "slower one goes".to_owned())]);
    assert_eq!(find("# tasks wait", "1 tasks wait"), [(1, "1 tasks wait".to_owned())]);
}
