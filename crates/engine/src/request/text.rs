//! Text that names where its secrets come from: `${NAME}` stands for a variable of the environment, `${file:PATH}` for
//! what a file holds. What is typed that way shows in no list of processes and is stored nowhere.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Text with references. It may be a secret, so it is never shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Template(String);

/// Why a reference leads to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// There is no such variable, or it is empty.
    #[error("the variable {0} is not set")]
    Variable(String),
    /// It cannot be read.
    #[error("the file {path} {why}")]
    File {
        /// Which.
        path: String,
        /// Why not.
        why: String,
    },
    /// It is no reference.
    #[error("expected ${{NAME}} with the name of a variable, or ${{file:PATH}}; $${{ stands for ${{ itself")]
    Reference,
}

/// Looks a variable up.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Template {
    /// The text as it was written.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as it was written. It is a secret unless it [refers](Self::refers) to one.
    pub fn as_written(&self) -> &str {
        &self.0
    }

    /// Whether it names where its secret comes from.
    pub fn refers(&self) -> bool {
        self.parts().any(|part| !matches!(part, Ok(Part::Text(_))))
    }

    /// The text with everything that it refers to.
    pub fn fill(&self, env: Env<'_>) -> Result<String, Missing> {
        let mut text = String::new();
        for part in self.parts() {
            match part? {
                Part::Text(part) => text.push_str(part),
                Part::Variable(name) => text.push_str(&variable(name, env)?),
                Part::File(path) => text.push_str(&contents(Path::new(path))?),
            }
        }
        Ok(text)
    }

    /// The same with the paths of its files made absolute, so that it can be read from another folder.
    pub fn absolute(&self) -> Self {
        let mut text = String::new();
        for part in self.parts() {
            match part {
                Ok(Part::Text("${")) => text.push_str("$${"),
                Ok(Part::Text(part)) => text.push_str(part),
                Ok(Part::Variable(name)) => text.push_str(&format!("${{{name}}}")),
                Ok(Part::File(path)) => {
                    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
                    text.push_str(&format!("${{file:{}}}", path.display()));
                }
                Err(_) => return self.clone(),
            }
        }
        Self(text)
    }

    fn parts(&self) -> Parts<'_> {
        Parts(&self.0)
    }
}

enum Part<'a> {
    Text(&'a str),
    Variable(&'a str),
    File(&'a str),
}

struct Parts<'a>(&'a str);

impl<'a> Iterator for Parts<'a> {
    type Item = Result<Part<'a>, Missing>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0;
        if rest.is_empty() {
            return None;
        }
        if let Some(after) = rest.strip_prefix("$${") {
            self.0 = after;
            return Some(Ok(Part::Text(&rest[1..3])));
        }
        let Some(inner) = rest.strip_prefix("${") else {
            let plain = rest.find("$${").into_iter().chain(rest.find("${")).min().unwrap_or(rest.len());
            self.0 = &rest[plain..];
            return Some(Ok(Part::Text(&rest[..plain])));
        };
        let Some((name, after)) = inner.split_once('}') else {
            self.0 = "";
            return Some(Err(Missing::Reference));
        };
        self.0 = after;
        Some(match name.strip_prefix("file:") {
            Some(path) if !path.is_empty() => Ok(Part::File(path)),
            None if is_name(name) => Ok(Part::Variable(name)),
            _ => Err(Missing::Reference),
        })
    }
}

/// Whether this can be the name of a variable. What is no name may be the secret itself, and is not repeated.
pub(crate) fn is_name(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && text.len() <= NAME_MAX && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// What a variable holds.
pub(crate) fn variable(name: &str, env: Env<'_>) -> Result<String, Missing> {
    env(name).filter(|value| !value.is_empty()).ok_or_else(|| Missing::Variable(name.to_owned()))
}

/// What a small file holds, without the line end that editors leave behind.
pub(crate) fn contents(path: &Path) -> Result<String, Missing> {
    let missing = |why: &str| Missing::File { path: path.display().to_string(), why: why.to_owned() };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text));
    match read {
        Err(cause) => Err(missing(&format!("cannot be read: {cause}"))),
        Ok(bytes) if bytes as u64 > FILE_MAX => Err(missing("is larger than 64 KiB")),
        Ok(_) if text.trim().is_empty() => Err(missing("is empty")),
        Ok(_) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

const NAME_MAX: usize = 200;
const FILE_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, Missing> {
        Template::new(text).fill(&|name| (name == "KEY").then(|| "k1".to_owned()))
    }

    #[test]
    fn references_are_filled_and_nothing_else() {
        assert_eq!(fill("Token ${KEY}!").unwrap(), "Token k1!");
        assert_eq!(fill("$5 $KEY {KEY} $${KEY} ${KEY}").unwrap(), "$5 $KEY {KEY} ${KEY} k1");
        assert_eq!(fill("${NONE}"), Err(Missing::Variable("NONE".to_owned())));
        for wrong in ["${", "${a b}", "${}", "${file:}", "${1}"] {
            assert_eq!(fill(wrong), Err(Missing::Reference), "{wrong}");
        }
        assert!(Template::new("x${KEY}").refers());
        assert!(!Template::new("$${KEY} $").refers());
    }

    #[test]
    fn a_file_is_read_without_its_last_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let template = Template::new(format!("${{file:{}}}", path.display()));
        let text = template.fill(&|_| None).unwrap_err().to_string();
        assert!(text.starts_with(&format!("the file {} cannot be read", path.display())), "{text}");
        std::fs::write(&path, "secret\n").unwrap();
        assert_eq!(template.fill(&|_| None).unwrap(), "secret");
        assert_eq!(format!("{template:?}"), "***");
        assert_eq!(template.absolute(), template);
    }
}
