// 100,000 sites and 10,000 jobs: pages stay fast while ten streams and a browser watch, and the work beside them goes on.
// The bounds are those that a busy machine keeps; MEASURE=1 takes longer and prints the figures.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { join } from 'node:path';
import { Browser, refreshed } from './browser.mjs';
import { World, api, request, sleep, until } from './world.mjs';

const MEASURE = Boolean(process.env.MEASURE);
const SITES = 100_000;
const JOBS = 10_000;

let world, browser, service, url, server, sites;

before(async () => {
  world = new World();
  server = http.createServer((_, response) => response.end('page')).listen(0, '127.0.0.1');
  await once(server, 'listening');
  sites = Array.from({ length: 20 }, (_, nth) => `s${nth}.localhost:${server.address().port}`);
  // Two hundred requests per second, as politely as each site asks for.
  world.configure(sites.map((one) => `[domains."${one}"]\nmin_delay = "100ms"\n`).join('\n'));
  // The program makes the tables; rows are added in one go, because asking for each would take minutes.
  const first = await world.serve();
  await api(first.url, 'POST', '/v1/jobs', { name: 'job-0', urls: ['http://site-0.example/1'] });
  await world.stop(first);
  await fill(join(world.folder, 'comity.db'));
  service = await world.serve();
  url = service.url;
  browser = await Browser.start();
});

after(async () => {
  await browser?.stop();
  await world?.end();
  server?.close();
});

/** Copies the rows of one job and one site until there are enough of both. */
const fill = async (file) => {
  const sqlite = spawn('sqlite3', ['-bail', file], { stdio: ['pipe', 'inherit', 'inherit'] });
  const describe = spawn('sqlite3', ['-json', file, `SELECT m.name AS 'table', p.name AS 'column' FROM sqlite_master m JOIN pragma_table_xinfo(m.name) p
    WHERE m.name IN ('domains', 'jobs', 'lanes', 'tasks') AND m.type = 'table' AND p.hidden = 0 ORDER BY p.cid`]);
  let text = '';
  describe.stdout.on('data', (data) => (text += data));
  await once(describe, 'close');
  const columns = {};
  for (const row of JSON.parse(text)) (columns[row.table] ||= []).push(row.column);
  const insert = (table, count, changes) => {
    const values = columns[table].map((name) => changes[name] ?? name);
    return `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})
      INSERT INTO ${table} (${columns[table].join(', ')}) SELECT ${values.join(', ')} FROM n, (SELECT * FROM ${table} ORDER BY id LIMIT 1);`;
  };
  sqlite.stdin.end(`PRAGMA foreign_keys = OFF; BEGIN;
    ${insert('domains', SITES, { id: 'id + i', domain: "'site-' || i || '.example'", adaptive_delay_seconds: '0.1 + (i % 50) * 0.1' })}
    ${insert('jobs', JOBS, { id: 'id + i', name: "'job-' || i" })}
    ${insert('lanes', JOBS, { id: 'id + i', job_id: 'job_id + i', domain_id: 'domain_id + i' })}
    ${insert('tasks', JOBS, { id: 'id + i', job_id: 'job_id + i', lane_id: 'lane_id + i', url_key: 'url_key + i' })}
    COMMIT;`);
  const [code] = await once(sqlite, 'close');
  assert.equal(code, 0, 'the store was filled');
};

const p95 = (all) => [...all].sort((a, b) => a - b)[Math.floor(all.length * 0.95)];

/** Ten clients that listen, like ten tabs. */
const listeners = () => Array.from({ length: 10 }, () => {
  const sent = http.get(`${url}/live`, (response) => response.resume());
  sent.on('error', () => {});
  return sent;
});

const watchers = async () => {
  const streams = listeners();
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(url);
  await until('the page is live', async () => (await refreshed(page)) >= 1);
  return { page, stop: async () => {
    streams.forEach((stream) => stream.destroy());
    await context.close();
  } };
};

test('the first byte of every page comes soon', async () => {
  const { stop } = await watchers();
  const paths = ['/', '/sites', '/sites?sort=name', '/sites?sort=delay', '/sites?sort=last_answer', '/sites?sort=held_until', '/sites?like=site-77',
    '/sites?like=9.example', '/sites/site-500.example', '/jobs', '/jobs?state=stopped', '/jobs?like=77', '/jobs/job-77', '/audit', '/rules', '/events'];
  const rounds = MEASURE ? 40 : 4;
  const took = [];
  const slowest = {};
  for (let round = 0; round < rounds; round += 1) {
    for (const path of paths) {
      const { first, status } = await request(url + path);
      assert.equal(status, 200, path);
      took.push(first);
      slowest[path] = Math.max(slowest[path] || 0, first);
    }
  }
  const bound = MEASURE ? Infinity : 1_000 + 10_000;
  console.log(`first byte of ${took.length} pages: p50 ${took.sort((a, b) => a - b)[took.length >> 1].toFixed(1)} ms, p95 ${p95(took).toFixed(1)} ms`);
  console.log(Object.entries(slowest).map(([path, ms]) => `  ${ms.toFixed(0).padStart(5)} ms  ${path}`).join('\n'));
  assert.ok(p95(took) < bound, `p95 ${p95(took)} ms`);
  await stop();
  browser.assertQuiet(url);
});

test('all sites can be found, page by page', async () => {
  const { text } = await request(`${url}/sites?sort=name`);
  assert.match(text, /more than 10,000 sites/);
  const next = text.match(/href="([^"]+)" rel="next"/)[1].replaceAll('&amp;', '&');
  assert.match((await request(url + next)).text, /site-\d+\.example/);
});

test('a job beside it keeps its throughput', async () => {
  // The same stretch of a job alone, and with everybody watching, in turns.
  const stretch = async (name, seconds) => {
    const urls = Array.from({ length: 400 * (seconds + 10) }, (_, nth) => `http://${sites[nth % sites.length]}/${name}/${nth}`);
    const working = await world.job(name, urls);
    const fetched = async () => (await api(url, 'GET', `/v1/jobs/${name}`)).fetched;
    await until('it fetches', async () => (await fetched()) > 100);
    const [begun, count] = [performance.now(), await fetched()];
    await sleep(seconds * 1000);
    const rate = ((await fetched()) - count) / ((performance.now() - begun) / 1000);
    await world.stop(working, 'SIGTERM');
    return rate;
  };
  const rounds = MEASURE ? 6 : 1;
  const seconds = MEASURE ? 15 : 4;
  const [alone, watched] = [[], []];
  for (let round = 0; round < rounds; round += 1) {
    alone.push(await stretch(`alone-${round}`, seconds));
    const { stop } = await watchers();
    watched.push(await stretch(`watched-${round}`, seconds));
    await stop();
  }
  const mean = (all) => all.reduce((sum, one) => sum + one, 0) / all.length;
  const share = mean(watched) / mean(alone);
  console.log(`alone ${alone.map((rate) => rate.toFixed(1))} pages/s; watched ${watched.map((rate) => rate.toFixed(1))}; ratio ${share.toFixed(3)}`);
  assert.ok(share > (MEASURE ? 0 : 0.3), `the job has ${share} of its throughput`);
});
