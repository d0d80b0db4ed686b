//! What the sites of the playground say: pages with links, a feed, a robots.txt, the list of sites.

use comity::core::time::Span;

use super::Counted;

/// The page at `path`: the front page, or one of a hundred.
pub(super) fn page(name: &str, about: &str, base: &str, path: &str) -> Option<String> {
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
    let body = format!(
        "<h1>{title}</h1>\n<p>This site is {about}. It lives on loopback, in the playground of Comity, and is \
         there to be fetched: nobody else is bothered by what you try on it.</p>\n<p>{}</p>\n<ul>\n{links}</ul>",
        WORDS[number as usize % WORDS.len()]
    );
    Some(document(&title, &body))
}

pub(super) fn robots(delay: Span) -> String {
    format!("User-agent: *\nCrawl-delay: {}\nDisallow: /private/\n", delay.as_secs_up())
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
pub(super) fn index(sites: &[Counted]) -> String {
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
        "<h1>Playground</h1>\n<p>Sites on loopback that behave as sites do. They count what is asked of them.</p>\n\
         <table>\n<tr><th>site</th><th>what it does</th><th>pages</th><th>refusals</th><th>early</th></tr>\n{rows}</table>"
    );
    document("Playground of Comity", &body)
}

fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>{STYLE}</style>\
         </head>\n<body>\n{body}\n</body></html>\n"
    )
}

const PAGES: u32 = 100;
const FEED_ITEMS: u32 = 6;
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}table{border-collapse:collapse}td,th{text-align:left;padding:.3rem .8rem .3rem 0;\
border-bottom:1px solid #ccc}@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181b}a{color:#8bf}}";
const WORDS: [&str; 4] = [
    "Whoever waits until a door opens is let in again; whoever knocks without pause is not.",
    "A site has one pace, however many ask: the sum of all requests is what it carries.",
    "A server that says when to come back has said all there is to know.",
    "What was learnt yesterday is worth keeping: nobody likes to be asked the same twice.",
];
