// What strangers, or careless people, put into titles, URLs, headers, names and errors is shown as it is, and never runs.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import http from 'node:http';
import { Browser } from './browser.mjs';
import { World, api, request } from './world.mjs';

const SCRIPT = '<script>globalThis.pwned=1</script>';
const IMAGE = '"><img src=x onerror=globalThis.pwned=1>';
const MARK = /<script>globalThis|<img src=x/;

let world, browser, service, url, site, server;

before(async () => {
  server = http.createServer((asked, response) => {
    const feed = `<?xml version="1.0"?><rss version="2.0"><channel><title><![CDATA[${SCRIPT}]]></title><item><title><![CDATA[${IMAGE}]]></title>
<link>http://${asked.headers.host}/item?${encodeURIComponent(SCRIPT)}</link></item></channel></rss>`;
    if (asked.url.startsWith('/feed')) return response.writeHead(200, { 'Content-Type': 'application/rss+xml', 'X-Title': IMAGE }).end(feed);
    if (asked.url.startsWith('/moved')) return response.writeHead(302, { Location: `javascript:globalThis.pwned=1//${SCRIPT}` }).end();
    if (asked.url.startsWith('/late')) return response.writeHead(429, { 'Retry-After': `9${SCRIPT}` }).end();
    if (asked.url.startsWith('/robots')) return response.writeHead(404).end();
    return response.writeHead(418, SCRIPT.replace(/[<>]/g, '_'), { 'Content-Type': IMAGE }).end(SCRIPT);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  site = `http://127.0.0.1:${server.address().port}`;
  world = new World();
  service = await world.serve();
  url = service.url;
  await world.run('--quiet', 'sources', 'add', `${site}/feed.xml`, '--name', SCRIPT, '--kind', 'feed');
  await world.run('--quiet', 'sources', 'add', `${site}/teapot?q=${IMAGE}`, '--name', IMAGE, '--kind', 'feed');
  await world.run('--quiet', 'run', '--format', 'none');
  await world.run('--quiet', 'fetch', '--job', 'hostile', '--format', 'none', '--max-retries', '0', `${site}/a?b=${SCRIPT}`, `${site}/'${IMAGE}`,
    `${site}/moved`, `http://no-such-host.invalid/${SCRIPT}`);
  await world.run('--quiet', 'fetch', '--job', `x${IMAGE}`, '--format', 'none', '--max-retries', '0', `${site}/b`);
  browser = await Browser.start();
});

after(async () => {
  await browser?.stop();
  await world?.end();
  server?.close();
});

test('nothing that a site, a URL or a name contains runs', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  const { jobs } = await api(url, 'GET', '/v1/jobs');
  const paths = ['/', '/sites', `/sites/${encodeURIComponent(new URL(site).host)}`, '/jobs', ...jobs.map(({ job }) => `/jobs/${encodeURIComponent(job)}`),
    '/sources', '/sources/1/run', '/sources/2/run', '/wikis', '/audit', '/events'];
  const attempts = [SCRIPT, IMAGE, `'${IMAGE}`, 'javascript:globalThis.pwned=1', '{{7*7}}'].map(encodeURIComponent);
  for (const attempt of attempts) {
    paths.push(`/sites?like=${attempt}`, `/sites?sort=${attempt}&order=${attempt}&after=${attempt}`, `/sites/${attempt}`, `/jobs?like=${attempt}`,
      `/jobs?state=${attempt}`, `/jobs/${attempt}`, `/jobs/hostile/retry?reason=${attempt}`, `/rules?url=${attempt}`, `/events?like=${attempt}&kind=${attempt}`,
      `/sources?like=${attempt}`, `/audit?before=${attempt}`, `/?over=${attempt}&done=${attempt}`, `/login?to=${attempt}`, `/${attempt}`);
  }
  let shown = 0;
  for (const path of paths) {
    const response = await page.goto(url + path);
    assert.equal(await page.evaluate(() => globalThis.pwned), undefined, path);
    assert.equal(await page.locator('main img, main script, a[href^="javascript:"]').count(), 0, path);
    const type = response.headers()['content-type'];
    assert.match(type, /^text\/html|^application\/problem\+json/, path);
    if (MARK.test(await page.locator('body').innerText())) shown += 1;
  }
  assert.ok(shown > 5, 'what was attempted is shown as text');
  // Pages that were not found are reported by the browser; nothing else may be.
  browser.problems = browser.problems.filter((problem) => !/status of (400|403|404|422)/.test(problem));
  browser.assertQuiet(url);
  await context.close();
});

test('events of hostile URLs are text, too', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/events`);
  await page.waitForSelector('#live:has-text("Live")');
  await api(url, 'POST', '/v1/check', { url: `http://evil.example/${SCRIPT}` });
  await page.waitForSelector('#events li:has-text("evil.example")');
  assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
  await context.close();
});

test('a login leads to no other host', async () => {
  for (const to of ['//evil.example', 'https://evil.example', '/\\evil.example']) {
    const { status, headers } = await request(`${url}/login?to=${encodeURIComponent(to)}`);
    assert.equal(status, 303);
    assert.equal(headers.location, '/');
  }
});
