//! Text with references to secrets: `${NAME}` is replaced by an environment variable, `${file:PATH}` by the content of
//! a file. Secrets referenced this way don't show up in the process list and are not stored.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Text with references. It may contain a secret, so `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Template(String);

/// Why a reference can't be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The variable is not set, or empty.
    #[error("the variable {0} is not set")]
    Variable(String),
    /// The file can't be read.
    #[error("the file {path} {why}")]
    File {
        /// The path of the file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The reference is invalid.
    #[error(
        "expected ${{NAME}} with the name of a variable, or ${{file:PATH}}; write $${{ for a literal ${{"
    )]
    Reference,
}

/// Looks a variable up.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Template {
    /// The text as it was written.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as it was written. It may be a secret unless it [has references](Self::has_references).
    pub fn as_written(&self) -> &str {
        &self.0
    }

    /// Whether it contains references.
    pub fn has_references(&self) -> bool {
        self.parts().any(|part| !matches!(part, Ok(Part::Text(_))))
    }

    /// The text with all references resolved.
    pub fn fill(&self, env: Env<'_>) -> Result<String, TemplateError> {
        let mut text = String::new();
        for part in self.parts() {
            match part? {
                Part::Text(part) => text.push_str(part),
                Part::Variable(name) => text.push_str(&variable(name, env)?),
                Part::File(path) => text.push_str(&file_content(Path::new(path))?),
            }
        }
        Ok(text)
    }

    /// The same with absolute paths, so that it can be resolved from another folder.
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
    type Item = Result<Part<'a>, TemplateError>;

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
            return Some(Err(TemplateError::Reference));
        };
        self.0 = after;
        Some(match name.strip_prefix("file:") {
            Some(path) if !path.is_empty() => Ok(Part::File(path)),
            None if is_name(name) => Ok(Part::Variable(name)),
            _ => Err(TemplateError::Reference),
        })
    }
}

/// Whether this is a valid variable name. Other text may be the secret itself, so messages must not repeat it.
pub(crate) fn is_name(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && text.len() <= NAME_MAX && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The value of a variable, if it is set and not empty.
pub(crate) fn variable(name: &str, env: Env<'_>) -> Result<String, TemplateError> {
    env(name).filter(|value| !value.is_empty()).ok_or_else(|| TemplateError::Variable(name.to_owned()))
}

/// The content of a small file, without the trailing line break that editors add.
pub(crate) fn file_content(path: &Path) -> Result<String, TemplateError> {
    let missing = |why: &str| TemplateError::File { path: path.display().to_string(), why: why.to_owned() };
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

    fn fill(text: &str) -> Result<String, TemplateError> {
        Template::new(text).fill(&|name| (name == "KEY").then(|| "k1".to_owned()))
    }

    #[test]
    fn only_references_are_replaced() {
        assert_eq!(fill("Token ${KEY}!").unwrap(), "Token k1!");
        assert_eq!(fill("$5 $KEY {KEY} $${KEY} ${KEY}").unwrap(), "$5 $KEY {KEY} ${KEY} k1");
        assert_eq!(fill("${NONE}"), Err(TemplateError::Variable("NONE".to_owned())));
        for wrong in ["${", "${a b}", "${}", "${file:}", "${1}"] {
            assert_eq!(fill(wrong), Err(TemplateError::Reference), "{wrong}");
        }
        assert!(Template::new("x${KEY}").has_references());
        assert!(!Template::new("$${KEY} $").has_references());
    }

    #[test]
    fn a_file_is_read_without_its_trailing_line_break() {
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
