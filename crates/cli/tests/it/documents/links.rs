//! Checks that links between pages work.

use super::page::{Page, root};

/// Every link to a file or a heading of this repository.
#[test]
fn every_link_works() {
    let mut pages = Page::all();
    pages.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "CHANGELOG.md"].map(Page::read));
    let (mut seen, mut wrong) = (0, Vec::new());
    for page in &pages {
        for (line, text) in &page.prose {
            for link in links(text).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
                seen += 1;
                if let Err(why) = leads(&page.name, link) {
                    wrong.push(format!("{}:{line}: {link}: {why}", page.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "only {seen} links were found");
}

/// The targets of the links and images in a line.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

fn leads(page: &str, link: &str) -> Result<(), String> {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let folder = std::path::Path::new(page).parent().unwrap_or(std::path::Path::new(""));
    let name = if file.is_empty() { page.into() } else { folder.join(file) };
    let path = root().join(&name);
    if !path.exists() {
        return Err("there is no such file".to_owned());
    }
    let Some(anchor) = anchor else { return Ok(()) };
    let known: Vec<String> =
        Page::read(&name.display().to_string()).prose.iter().filter_map(|(_, line)| heading(line)).collect();
    if known.iter().any(|known| known == anchor) {
        Ok(())
    } else {
        Err(format!("there is {}", known.join(", ")))
    }
}

/// The anchor of a heading.
fn heading(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase())
}
