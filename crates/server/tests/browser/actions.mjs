// Every action, from the button to what it does to a running job; with and without scripts; and that it is written down.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Browser } from './browser.mjs';
import { World, api, pages, request, sleep, until } from './world.mjs';

let world, browser, service, url, strict, garden, sites;

before(async () => {
  world = new World();
  world.configure('[domains."*.slow.example"]\nmin_delay = "7s"');
  sites = await world.playground();
  service = await world.serve();
  url = service.url;
  [strict, garden] = [new URL(sites.strict).host, new URL(sites.garden).host];
  await world.run('--quiet', 'sources', 'add', `${sites.harbour}/feed.xml`, '--name', 'Harbour');
  await world.run('--quiet', 'run', '--format', 'none', '--no-scrape');
  await world.run('--quiet', 'fetch', '--job', 'small', '--format', 'none', `${sites.garden}/page/1`, `${sites.garden}/missing`, `${sites.library}/missing`);
  await world.job('nightly', [...pages(sites.strict, 1, 300), ...pages(sites.garden, 1, 900)]);
  await until('the job has fetched something', async () => (await fetched()) > 10);
  browser = await Browser.start();
});

after(async () => {
  await browser?.stop();
  await world?.end();
});

const job = () => api(url, 'GET', '/v1/jobs/nightly');
const fetched = async () => (await job()).fetched;
const domain = (name) => api(url, 'GET', `/v1/domains/${encodeURIComponent(name)}`);

/** Clicks a button of a page, answers the question, and returns what the question said. */
const act = async (page, path, button, fill = async () => {}) => {
  await page.goto(url + path);
  await page.getByRole('link', { name: button }).first().click();
  const impact = await page.locator('#impact').innerText();
  await fill(page);
  await page.locator('form.card button').click();
  await page.waitForURL('**done=*');
  return impact;
};

for (const javaScriptEnabled of [true, false]) {
  test(`sites can be paused, resumed, set, pinned, released and reset ${javaScriptEnabled ? 'with' : 'without'} scripts`, async () => {
    const context = await browser.context({ javaScriptEnabled });
    const page = await context.newPage();
    const path = `/sites/${encodeURIComponent(garden)}`;

    assert.match(await act(page, path, 'Pause'), /^Stops [\d,]+ waiting URLs?\./);
    assert.match(await page.locator('h1').innerText(), /paused/);
    assert.match(await page.locator('#lead').innerText(), /until an operator resumes/);
    assert.equal((await domain(garden)).paused, true);
    assert.match(await act(page, path, 'Resume'), /^Lets [\d,]+ waiting URLs? continue\./);
    assert.equal((await domain(garden)).paused, false);

    await act(page, path, 'Pause', (form) => form.selectOption('select', '10m'));
    const left = Date.parse((await domain(garden)).paused_until) - Date.now();
    assert.ok(left > 8 * 60e3 && left <= 10 * 60e3, `${left}`);
    await act(page, path, 'Resume');

    await act(page, path, 'Set delay', async (form) => {
      await form.fill('#delay', '0.3');
      await form.fill('#floor', '0.1');
    });
    assert.equal((await domain(garden)).adaptive_delay_floor_seconds, 0.1);
    await act(page, path, 'Pin');
    await until('it is pinned', async () => (await domain(garden)).pinned);
    await act(page, path, 'Unpin');
    await until('it is unpinned', async () => !(await domain(garden)).pinned);
    assert.match(await act(page, path, 'Release permits'), /^Releases \d+ permits?; /);
    assert.match(await act(page, path, 'Reset'), /^Forgets the learned delay of /);
    assert.equal((await domain(garden)).adaptive_delay_seconds, 0);
    await context.close();
    browser.assertQuiet(url);
  });
}

test('a paused site holds up the job beside it, and resuming it lets it go on', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  for (const name of [garden, strict]) await act(page, `/sites/${encodeURIComponent(name)}`, 'Pause');
  await sleep(1500);
  const count = await fetched();
  await sleep(2000);
  assert.equal(await fetched(), count, 'nothing is fetched from paused sites');
  for (const name of [garden, strict]) await act(page, `/sites/${encodeURIComponent(name)}`, 'Resume');
  await until('the job goes on', async () => (await fetched()) > count);
  await context.close();
});

test('a source is run now by the process that watches', async () => {
  const watching = await world.start(['--quiet', 'run', '--watch', '--no-scrape', '--format', 'none']);
  const context = await browser.context();
  const page = await context.newPage();
  const before = (await api(url, 'GET', '/v1/sources/1')).last_fetch_at;
  assert.match(await act(page, '/sources', 'Run now'), /^Fetches 1 source/);
  await until('the source is fetched again', async () => (await api(url, 'GET', '/v1/sources/1')).last_fetch_at !== before);
  await context.close();
  await world.stop(watching);
});

test('what failed is grouped, and retried by group', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/jobs/small`);
  assert.match(await page.locator('.groups').innerText(), /2\s+HTTP 404 Not Found/);
  assert.match(await page.locator('.groups').innerText(), /\/missing/);
  assert.equal(await act(page, '/jobs/small', 'Retry these'), 'Makes 2 URLs wait again.');
  assert.equal((await api(url, 'GET', '/v1/jobs/small')).waiting, 2);
  await page.goto(`${url}/jobs/small`);
  assert.match(await page.locator('main').innerText(), /comity fetch --job small/);
  await context.close();
  browser.assertQuiet(url);
});

test('results are downloaded as CSV and JSON Lines', async () => {
  const csv = await request(`${url}/jobs/small/export?format=csv`);
  assert.equal(csv.headers['content-disposition'], 'attachment; filename="small.csv"');
  assert.equal(csv.text.trim().split('\n').length, 4);
  const rows = (await request(`${url}/jobs/small/export?format=jsonl`)).text.trim().split('\n').map((row) => JSON.parse(row));
  assert.equal(rows.length, 3);
  const printed = await world.run('jobs', 'export', 'small', '--format', 'csv');
  assert.equal(csv.text, printed.text, 'the same rows as comity jobs export');
});

test('the rule for a URL is shown with the line it was written on', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/rules`);
  await page.fill('#url', 'https://a.slow.example/page');
  await page.press('#url', 'Enter');
  const row = page.locator('tr', { hasText: 'min_delay' }).first();
  assert.match(await row.innerText(), /7s/);
  assert.match(await row.innerText(), /\*\.slow\.example/);
  assert.match(await row.innerText(), /comity\.toml:9/);
  await page.goto(`${url}/rules?url=not%20a%20url`);
  assert.match(await page.locator('.error').innerText(), /isn't a URL/);
  await context.close();
});

test('a job is cancelled after a question that counts what is skipped', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  const impact = await act(page, '/jobs/nightly', 'Cancel');
  assert.match(impact, /^Skips [\d,]+ waiting URLs\. [\d,]+ are fetched already\./);
  await until('the job is cancelled', async () => (await job()).state === 'cancelled');
  assert.match(await page.locator('h1').innerText(), /cancelled/);
  await context.close();
});

test('the audit list says who did what, and with which result', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/audit`);
  const text = await page.locator('table').innerText();
  for (const wanted of [/cancel job nightly\s+Skips [\d,]+ waiting URLs/, /retry job small\s+Makes 2 URLs wait again/,
    /run source 1 \(Harbour\)/, /pause site garden\.localhost/, /reset site garden\.localhost/, /someone on this machine/]) {
    assert.match(text, wanted);
  }
  await context.close();
  browser.assertQuiet(url);
});
