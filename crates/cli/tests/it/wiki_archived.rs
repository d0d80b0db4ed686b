//! Compares an archive with the wiki's own database.

use crate::comity::World;
use crate::mediawiki::{MediaWiki, Row};

/// Asserts that the archive matches the wiki, revision by revision and page by page.
#[track_caller]
pub(crate) fn same(world: &World, wiki: &MediaWiki, namespaces: &[i64]) {
    let archive = world.sql();
    for namespace in namespaces {
        let sql = "SELECT revision_id, r.page_id, parent_id, strftime('%Y%m%d%H%M%S', at_us / 1000000, 'unixepoch'), hidden,
                coalesce(r.sha1, ''), r.size, minor, user, comment, iif(c.sha1 IS NULL, NULL, lower(hex(c.sha1)))
            FROM wiki_revisions r JOIN wiki_pages p USING (wiki_id, page_id)
                JOIN wiki_slots s USING (wiki_id, revision_id) LEFT JOIN wiki_contents c ON c.id = content_id
            WHERE namespace = ?1 AND NOT deleted AND role = 'main' ORDER BY revision_id";
        let mut statement = archive.prepare(sql).unwrap();
        let ours = statement.query_map([namespace], Row::read).unwrap().map(|row| {
            let row = row.unwrap();
            Row { sha1: base36(&row.sha1), text: row.text.as_deref().map(base36), ..row }
        });
        let ours: Vec<Row> = ours.collect();
        let mut theirs = wiki.revisions(*namespace);
        // The API returns neither hidden parts nor the checksum of hidden text; what was archived before is kept.
        for row in &mut theirs {
            let is_hidden = |bit: i64| row.hidden & bit != 0;
            let (text, comment, user) = (is_hidden(1), is_hidden(2), is_hidden(4));
            if text {
                let our = ours.iter().find(|our| our.id == row.id);
                (row.sha1, row.text) = (base36(""), our.and_then(|our| our.text.clone()));
            }
            row.comment = row.comment.take().filter(|_| !comment);
            row.user = row.user.take().filter(|_| !user);
        }
        let (lost, wrong) = (without(&theirs, &ours), without(&ours, &theirs));
        assert!(
            lost.is_empty() && wrong.is_empty(),
            "namespace {namespace}: lost {lost:#?}, wrong {wrong:#?}"
        );
        let sql =
            "SELECT page_id, title, redirect, newest FROM wiki_pages WHERE namespace = ?1 AND NOT deleted
            ORDER BY page_id";
        let mut statement = archive.prepare(sql).unwrap();
        let row = |row: &rusqlite::Row<'_>| {
            let title: String = row.get(1)?;
            let title = match namespace {
                0 => title,
                _ => title.split_once(':').unwrap().1.to_owned(),
            };
            Ok((row.get(0)?, title, row.get(2)?, row.get(3)?))
        };
        let ours: Vec<(i64, String, bool, i64)> =
            statement.query_map([namespace], row).unwrap().map(Result::unwrap).collect();
        assert_eq!(ours, wiki.pages(*namespace), "namespace {namespace}");
    }
}

/// Those of `some` that are not among `others`.
fn without<'a>(some: &'a [Row], others: &[Row]) -> Vec<&'a Row> {
    some.iter().filter(|row| !others.contains(row)).collect()
}

/// Converts a hexadecimal SHA-1 to base 36, as in MediaWiki's database.
fn base36(hex: &str) -> String {
    let mut digits = [0_u32; 31];
    for nibble in hex.chars().filter_map(|c| c.to_digit(16)) {
        let mut carry = nibble;
        for digit in digits.iter_mut().rev() {
            let value = *digit * 16 + carry;
            (*digit, carry) = (value % 36, value / 36);
        }
    }
    digits.iter().filter_map(|digit| char::from_digit(*digit, 36)).collect()
}
