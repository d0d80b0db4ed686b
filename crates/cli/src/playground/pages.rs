//! The content of the playground's sites: pages with links, a feed, a sitemap, a robots.txt, the list of sites.

use comity::core::time::Span;

use super::SiteReport;

/// The page at `path`: the front page, or one of a hundred. `feed` is the path of the site's feed.
pub(super) fn page(name: &str, about: &str, base: &str, path: &str, feed: Option<&str>) -> Option<String> {
    let number = match path {
        "/" => 0,
        _ => path.strip_prefix("/page/").or_else(|| path.strip_prefix("/private/"))?.parse::<u32>().ok()?,
    };
    if number > PAGES {
        return None;
    }
    let title = if number == 0 { format!("The {name} site") } else { format!("Page {number} of {name}") };
    let links = (number + 1..=PAGES.min(number + 3))
        .map(|next| format!("<li><a href=\"{base}/page/{next}\">Page {next}</a></li>\n"))
        .collect::<String>();
    let (head, more) = match number {
        0 => front(name, base, feed),
        _ => Default::default(),
    };
    let body = format!(
        "<h1>{title}</h1>\n<p>This is {about}. It runs on loopback, in Comity's playground, and is there to be \
         fetched: nothing you try here bothers anyone.</p>\n<p>{}</p>\n<ul>\n{links}{more}</ul>",
        SAYINGS[number as usize % SAYINGS.len()]
    );
    Some(document(&title, &head, &body))
}

/// What the front page has besides: a link to the feed in its head, and links to the other things to try.
fn front(name: &str, base: &str, feed: Option<&str>) -> (String, String) {
    let link = |path: &str, text: &str| format!("<li><a href=\"{base}{path}\">{text}</a></li>\n");
    let more = link("/sitemap.xml", "Sitemap") + &link("/missing", "A page that doesn't exist");
    let Some(feed) = feed else { return (String::new(), more) };
    let attributes = format!("rel=\"alternate\" type=\"application/rss+xml\" title=\"News of the {name}\"");
    (format!("<link {attributes} href=\"{base}{feed}\">\n"), more + &link(feed, "Feed"))
}

/// The page of a 404.
pub(super) fn missing() -> String {
    document("Not found", "", "<h1>Not found</h1>\n<p>There is no such page.</p>")
}

pub(super) fn robots(base: &str, delay: Span) -> String {
    let delay = delay.as_secs_up();
    format!("User-agent: *\nCrawl-delay: {delay}\nDisallow: /private/\n\nSitemap: {base}/sitemap.xml\n")
}

/// A sitemap of the first pages.
pub(super) fn sitemap(base: &str) -> String {
    let urls: String =
        (1..=SITEMAP_PAGES).map(|nth| format!("<url><loc>{base}/page/{nth}</loc></url>\n")).collect();
    format!(
        "<?xml version=\"1.0\"?>\n<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\n{urls}</urlset>\n"
    )
}

/// A feed with a few entries.
pub(super) fn feed(base: &str) -> String {
    let items: String = (1..=FEED_ITEMS)
        .map(|nth| {
            format!(
                "<item><title>Entry {nth}</title><link>{base}/page/{nth}</link><guid>{base}/page/{nth}</guid></item>\n"
            )
        })
        .collect();
    format!(
        "<?xml version=\"1.0\"?>\n<rss version=\"2.0\"><channel><title>News of the harbour</title>\
         <link>{base}/</link><description>What came in</description>\n{items}</channel></rss>\n"
    )
}

/// The list of sites, for a browser.
pub(super) fn index(sites: &[SiteReport]) -> String {
    let rows: String = sites
        .iter()
        .map(|site| {
            let (url, tally) = (&site.url, site.tally);
            format!(
                "<tr><td><a href=\"{url}/\">{}</a></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                site.name, site.about, tally.pages, tally.refused, tally.early
            )
        })
        .collect();
    let body = format!(
        "<h1>Playground</h1>\n<p>Test sites on loopback that behave like real ones. They count requests.</p>\n\
         <table>\n<tr><th>site</th><th>behavior</th><th>pages</th><th>429 or 503</th><th>too early</th></tr>\n{rows}</table>"
    );
    document("Comity playground", "", &body)
}

fn document(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n{head}<style>{STYLE}</style>\
         </head>\n<body>\n{body}\n</body></html>\n"
    )
}

const PAGES: u32 = 100;
const SITEMAP_PAGES: u32 = 12;
const FEED_ITEMS: u32 = 6;
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}table{border-collapse:collapse}td,th{text-align:left;padding:.3rem .8rem .3rem 0;\
border-bottom:1px solid #ccc}@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181b}a{color:#8bf}}";
/// Filler text for the pages.
const SAYINGS: [&str; 4] = [
    "If you wait until the door opens, you are let in again; if you keep knocking, you are not.",
    "A site has one pace, however many clients it has: what counts is the sum of all requests.",
    "A server that says when to come back has told you all you need to know.",
    "What was learned yesterday is worth keeping: no server likes to answer the same request twice.",
];
