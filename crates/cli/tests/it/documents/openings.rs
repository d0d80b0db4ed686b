//! How pages begin: with what the reader will be able to do, then the shortest example that works. Each links to the reference.

use super::page::Page;

#[test]
fn every_page_opens_with_its_purpose_and_an_example() {
    let is_guide = |page: &Page| page.name.starts_with("docs/") || page.name.starts_with("contrib/");
    for page in Page::all().iter().filter(|page| is_guide(page) && !OTHERWISE.contains(&page.name.as_str())) {
        let mut prose = page.prose.iter().map(|(_, line)| line.as_str()).filter(|line| !line.is_empty());
        assert!(prose.next().is_some_and(|line| line.starts_with("# ")), "{}: no title", page.name);
        let purpose = prose.next().unwrap_or_default();
        assert!(purpose.starts_with("After this page "), "{}: opens with {purpose:?}", page.name);
        let example = page.blocks.first().map(|block| block.line);
        assert!(
            example.is_some_and(|line| line <= FIRST_LINES),
            "{}: first example at {example:?}",
            page.name
        );
        let has_reference = page.prose.iter().any(|(_, line)| line.contains("config.md"));
        assert!(has_reference, "{}: no link to docs/config.md", page.name);
    }
}

/// The list of pages, the reference itself, and a list of promises, whose example is part of a sentence.
const OTHERWISE: [&str; 3] = ["docs/README.md", "docs/config.md", "docs/behaviours.md"];
const FIRST_LINES: usize = 12;
