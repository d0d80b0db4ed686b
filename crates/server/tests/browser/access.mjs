// Who may see and do what: roles, sessions, forged requests, tokens that are revoked.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Browser, login, refreshed, violations } from './browser.mjs';
import { TOKENS, World, api, request, sleep, until } from './world.mjs';

let world, browser, service, url;

before(async () => {
  world = new World();
  world.configure(world.tokens());
  service = await world.serve();
  url = service.url;
  await api(url, 'POST', '/v1/jobs', { name: 'waiting', urls: ['http://a.example/1', 'http://a.example/2'] }, TOKENS.admin);
  await api(url, 'POST', '/v1/check', { domain: 'a.example' }, TOKENS.admin);
  browser = await Browser.start();
});

after(async () => {
  await browser?.stop();
  await world?.end();
});

test('pages need a login, which leads to where somebody wanted to go', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/jobs?state=stopped`);
  assert.match(page.url(), /\/login\?to=/);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    assert.deepEqual(await violations(page), []);
  }
  await page.fill('#token', 'not-a-token-of-anybody');
  await page.click('button.main');
  assert.match(await page.locator('.error').innerText(), /unknown/);
  await page.fill('#token', TOKENS.view);
  await page.click('button.main');
  await page.waitForURL(`${url}/jobs?state=stopped`);
  const cookies = await context.cookies();
  assert.ok(cookies.every((cookie) => cookie.httpOnly && cookie.sameSite === 'Strict'), JSON.stringify(cookies));
  await page.click('text=Log out');
  await page.waitForURL('**/login?out=yes');
  await page.goto(url);
  assert.match(page.url(), /\/login/);
  await context.close();
  browser.assertQuiet(url);
});

for (const role of ['view', 'use']) {
  test(`the role ${role} sees everything, and no buttons`, async () => {
    const context = await browser.context();
    const page = await context.newPage();
    await login(page, url, TOKENS[role]);
    for (const path of ['/', '/sites', '/sites/a.example', '/jobs', '/jobs/waiting', '/sources', '/wikis', '/rules', '/events', '/audit']) {
      const response = await page.goto(url + path);
      assert.equal(response.status(), 200, path);
      const buttons = await page.locator('main form[method=post], main a:text-is("Cancel"), main a:text-is("Pause"), main a:text-is("Reset")').count();
      assert.equal(buttons, 0, path);
    }
    const Cookie = (await context.cookies()).map(({ name, value }) => `${name}=${value}`).join('; ');
    const token = await page.locator('input[name=form_token]').first().inputValue();
    for (const path of ['/sites/a.example/pause', '/jobs/waiting/cancel', '/jobs/waiting/retry']) {
      assert.equal((await request(url + path, { headers: { Cookie } })).status, 403, path);
      const posted = await request(url + path, { method: 'POST', headers: { Cookie }, body: `form_token=${token}` });
      assert.equal(posted.status, 403, path);
    }
    await context.close();
  });
}

test('a token that may only look can read the API and change nothing', async () => {
  const headers = { Authorization: `Bearer ${TOKENS.view}`, 'Content-Type': 'application/json' };
  assert.equal((await request(`${url}/v1/domains`, { headers })).status, 200);
  assert.equal((await request(`${url}/v1/peek`, { method: 'POST', headers, body: '{"domain":"a.example"}' })).status, 200);
  for (const path of ['/v1/check', '/v1/acquire', '/v1/record']) {
    assert.equal((await request(url + path, { method: 'POST', headers, body: '{"domain":"a.example"}' })).status, 403, path);
  }
  const cookieOnly = await request(`${url}/v1/domains`, { headers: { Cookie: 'comity=x' } });
  assert.equal(cookieOnly.status, 401);
});

test('requests that another page has forged are refused', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await login(page, url, TOKENS.admin);
  await page.goto(`${url}/jobs/waiting/cancel`);
  const token = await page.locator('form.card input[name=form_token]').inputValue();
  const cookie = (await context.cookies()).map(({ name, value }) => `${name}=${value}`).join('; ');
  const post = (headers, body) => request(`${url}/jobs/waiting/cancel`, {
    method: 'POST', headers: { 'Content-Type': 'application/x-www-form-urlencoded', Cookie: cookie, ...headers }, body,
  });
  const good = `form_token=${token}`;
  for (const [what, headers, body] of [
    ['no token', {}, ''],
    ['another token', {}, 'form_token=AAAA'],
    ['another origin', { Origin: 'http://evil.example' }, good],
    ['another port', { Origin: 'http://127.0.0.1:1', 'Sec-Fetch-Site': 'same-site' }, good],
    ['another site', { 'Sec-Fetch-Site': 'cross-site' }, good],
    ['another host', { Host: 'evil.example' }, good],
  ]) {
    assert.equal((await post(headers, body)).status, 403, what);
  }
  assert.equal((await api(url, 'GET', '/v1/jobs/waiting', undefined, TOKENS.admin)).state, 'stopped');
  assert.equal((await post({ Origin: url, 'Sec-Fetch-Site': 'same-origin' }, good)).status, 303);
  assert.equal((await api(url, 'GET', '/v1/jobs/waiting', undefined, TOKENS.admin)).state, 'cancelled');
  await context.close();
});

test('pages say what browsers may do with them', async () => {
  const { headers } = await request(`${url}/login`);
  assert.match(headers['content-security-policy'], /default-src 'none'.*frame-ancestors 'none'/);
  assert.equal(headers['x-frame-options'], 'DENY');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.equal(headers['cache-control'], 'no-store');
});

test('revoking a token ends its sessions and its streams', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await login(page, url, TOKENS.view);
  await until('the page is live', async () => (await page.locator('#live').innerText()) === 'Live');
  const cookie = (await context.cookies()).map(({ name, value }) => `${name}=${value}`).join('; ');
  const stream = request(`${url}/live`, { headers: { Cookie: cookie } });
  await sleep(300);
  writeFileSync(join(world.folder, 'tokens'), `admin:${TOKENS.admin}\n`, { mode: 0o600 });
  service.kill('SIGHUP');
  const ended = await stream;
  assert.equal(ended.status, 200, 'the stream has ended');
  await page.waitForURL('**/login**', { timeout: 30000 });
  const gone = await request(`${url}/jobs`, { headers: { Cookie: cookie } });
  assert.equal(gone.status, 303);
  assert.equal((await request(`${url}/live`, { headers: { Cookie: cookie } })).status, 401);
  await context.close();
});
