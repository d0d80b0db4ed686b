// Every page: in both themes, on narrow and wide screens, without scripts, with a keyboard, with a screen reader's eyes.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { Browser, refreshed, violations } from './browser.mjs';
import { World, api, pages, sleep, until } from './world.mjs';

let world, browser, service, url, site, paths;

before(async () => {
  world = new World();
  const sites = await world.playground();
  service = await world.serve();
  url = service.url;
  await world.run('--quiet', 'sources', 'add', `${sites.harbour}/feed.xml`, '--name', 'News of the harbour');
  await world.run('--quiet', 'sources', 'add', `${sites.harbour}/nothing.xml`, '--name', 'A broken feed', '--kind', 'feed');
  await world.run('--quiet', 'run', '--format', 'none');
  await world.run('--quiet', 'fetch', '--job', 'small', '--format', 'none', `${sites.garden}/page/1`, `${sites.garden}/missing`);
  const urls = [...pages(sites.strict, 1, 150), ...pages(sites.slow, 1, 40), ...pages(sites.flaky, 1, 40),
    ...pages(sites.garden, 1, 200), `${sites.garden}/missing`];
  await world.job('nightly', urls);
  site = new URL(sites.strict).host;
  await until('the job has fetched something', async () => (await api(url, 'GET', '/v1/jobs/nightly')).fetched > 20);
  paths = ['/', '/sites', `/sites/${site}`, `/sites/${site}/pause`, `/sites/${site}/set`, '/sites/nobody.example', '/jobs',
    '/jobs/nightly', '/jobs/small', '/jobs/nightly/cancel', '/sources', '/sources/1/run', '/wikis', '/rules',
    `/rules?url=${encodeURIComponent(sites.strict)}`, '/events', '/audit', '/sites?like=no-such-site', '/jobs?like=none', '/none'];
  browser = await Browser.start();
});

after(async () => {
  await browser?.stop();
  await world?.end();
});

const statusOf = (path) => (path === '/none' ? 404 : 200);

for (const theme of ['light', 'dark']) {
  test(`every page is accessible in the ${theme} theme`, async () => {
    const context = await browser.context({ colorScheme: theme });
    const page = await context.newPage();
    for (const path of paths) {
      if (path === '/none') continue;
      await page.goto(url + path);
      assert.deepEqual(await violations(page), [], `${path} in ${theme}`);
    }
    await context.close();
    browser.assertQuiet(url);
  });
}

test('every page fits, from a small phone to a wall', async () => {
  for (const width of [320, 768, 1280, 3840]) {
    const context = await browser.context({ viewport: { width, height: 800 } });
    const page = await context.newPage();
    for (const path of paths) {
      if (path === '/none') continue;
      await page.goto(url + path);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${path} is ${wide} wide on a screen of ${width}`);
    }
    await context.close();
  }
  browser.assertQuiet(url);
});

test('every page says the same without scripts', async () => {
  const context = await browser.context({ javaScriptEnabled: false });
  const page = await context.newPage();
  for (const path of paths) {
    if (path === '/none') continue;
    const response = await page.goto(url + path);
    assert.equal(response.status(), statusOf(path), path);
    const text = await page.locator('main').innerText();
    assert.ok(text.trim().length > 40, `${path}: ${text}`);
    assert.match(await page.locator('.still').innerText(), /^As of \d{4}-\d\d-\d\d /, path);
  }
  // Search and links work as forms and links do.
  await page.goto(`${url}/sites`);
  await page.fill('input[name=like]', 'strict');
  await page.press('input[name=like]', 'Enter');
  await page.click(`a:text-is("${site}")`);
  assert.match(await page.locator('h1').innerText(), /strict/);
  await context.close();
  browser.assertQuiet(url);
});

test('pages follow what happens, without being loaded again', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  for (const path of ['/jobs/nightly', '/', `/sites/${site}`, '/sites', '/jobs']) {
    await page.goto(url + path);
    await page.evaluate(() => (globalThis.sameDocument = true));
    await until(`${path} is brought up to date`, async () => (await refreshed(page)) >= 2);
    assert.ok(await page.evaluate(() => globalThis.sameDocument), `${path} was loaded again`);
    assert.equal(await page.locator('#live').innerText(), 'Live');
  }
  await page.goto(`${url}/jobs/nightly`);
  const fetched = () => page.locator('#counts dd').first().innerText();
  const before = await fetched();
  await until('the number of fetched URLs grows', async () => (await fetched()) !== before);
  await context.close();
  browser.assertQuiet(url);
});

test('what somebody types or opens is left alone', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/sites`);
  await page.fill('#like', 'half a na');
  await page.focus('#like');
  const begun = await refreshed(page);
  await until('an update', async () => (await refreshed(page)) > begun + 1);
  assert.equal(await page.inputValue('#like'), 'half a na');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'like');
  await page.goto(url);
  await page.click('details > summary');
  const at = await refreshed(page);
  await until('an update', async () => (await refreshed(page)) > at + 1);
  assert.ok(await page.locator('details').evaluate((details) => details.open));
  await context.close();
});

test('a hidden tab asks for nothing, and catches up when it is seen again', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(url);
  await until('an update', async () => (await refreshed(page)) >= 1);
  const hide = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await hide(true);
  assert.equal(await page.locator('#live').innerText(), 'Paused');
  await sleep(500);
  const ours = () => browser.proxy.seen.filter((seen) => seen.origin === url).length;
  const [asked, updates] = [ours(), await refreshed(page)];
  await sleep(4000);
  assert.equal(ours(), asked, 'requests of a hidden tab');
  assert.equal(await refreshed(page), updates);
  await hide(false);
  await until('an update', async () => (await refreshed(page)) > updates);
  await context.close();
  browser.assertQuiet(url);
});

test('everything can be reached and done with a keyboard', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/sites/${site}`);
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'content');
  await page.goto(`${url}/sites/${site}`);
  const wanted = new Set(await page.$$eval('a[href], button, summary, [tabindex="0"]', (all) => all.length ? all.map((one) => one.outerHTML.slice(0, 80)) : []));
  const reached = new Set();
  for (let nth = 0; nth < wanted.size + 5; nth += 1) {
    await page.keyboard.press('Tab');
    const focused = await page.evaluate(() => {
      const element = document.activeElement;
      const style = getComputedStyle(element);
      return { html: element.outerHTML.slice(0, 80), outline: style.outlineStyle, width: parseFloat(style.outlineWidth), body: element === document.body };
    });
    if (focused.body) continue;
    reached.add(focused.html);
    assert.ok(focused.outline !== 'none' && focused.width >= 2, `the focus is not visible on ${focused.html}`);
  }
  const missed = [...wanted].filter((html) => !reached.has(html) && !html.includes('class="skip"'));
  assert.ok(missed.length <= 1, `not reached: ${missed.join('\n')}`);
  // An action from beginning to end.
  await page.goto(`${url}/sites/${site}`);
  const focusOn = async (text) => {
    for (let nth = 0; nth < 60; nth += 1) {
      await page.keyboard.press('Tab');
      if ((await page.evaluate(() => document.activeElement.textContent)) === text) return;
    }
    throw new Error(`no focus on ${text}`);
  };
  await focusOn('Pin');
  await page.keyboard.press('Enter');
  await page.waitForURL('**/pin');
  await focusOn('Pin the delay');
  await page.keyboard.press('Enter');
  await page.waitForURL('**done=pin');
  assert.match(await page.locator('h1').innerText(), /pinned/);
  await context.close();
  browser.assertQuiet(url);
});

test('motion is not used, and times count down', async () => {
  const context = await browser.context({ reducedMotion: 'reduce' });
  const page = await context.newPage();
  await page.goto(url);
  const moving = await page.evaluate(() => document.getAnimations().length);
  assert.equal(moving, 0);
  await context.close();
});

test('events appear as they happen, and can be filtered', async () => {
  const context = await browser.context();
  const page = await context.newPage();
  await page.goto(`${url}/events`);
  await until('the stream is open', async () => (await page.locator('#live').innerText()) === 'Live');
  await api(url, 'POST', '/v1/check', { domain: 'first.example' });
  await page.waitForSelector('#events li:has-text("first.example")');
  await page.fill('#like', 'second');
  await api(url, 'POST', '/v1/check', { domain: 'second.example' });
  await page.waitForSelector('#events li:has-text("second.example"):visible');
  assert.equal(await page.locator('#events li:has-text("first.example"):visible').count(), 0);
  await context.close();
  // The same moment without a script, with the filter as a form.
  const still = await browser.context({ javaScriptEnabled: false });
  const moment = await still.newPage();
  await moment.goto(`${url}/events?like=second`);
  assert.ok((await moment.locator('#events li').count()) >= 1);
  assert.equal(await moment.locator('#events li:has-text("first.example")').count(), 0);
  await still.close();
  browser.assertQuiet(url);
});

test('empty pages say what to do next', async () => {
  const empty = new World();
  const other = await empty.serve();
  const context = await browser.context();
  const page = await context.newPage();
  for (const [path, command] of [['/', 'comity fetch'], ['/sites', 'comity fetch'], ['/jobs', '--job news'],
    ['/sources', 'comity sources add'], ['/wikis', 'comity wiki archive'], ['/rules', 'comity config init'], ['/events', 'comity check']]) {
    await page.goto(other.url + path);
    assert.ok((await page.locator('main pre').allInnerTexts()).join('\n').includes(command), path);
    assert.deepEqual(await violations(page), [], path);
  }
  await context.close();
  await empty.end();
  for (const list of ['seen', 'asked']) {
    const owner = list === 'seen' ? browser.proxy : browser;
    owner[list] = owner[list].filter((seen) => seen.origin !== other.url);
  }
  browser.assertQuiet(url);
});

test('pictures', { skip: !process.env.SHOTS }, async () => {
  mkdirSync(process.env.SHOTS, { recursive: true });
  for (const theme of ['light', 'dark']) {
    for (const [device, viewport] of [['desktop', { width: 1280, height: 900 }], ['phone', { width: 390, height: 844 }]]) {
      const context = await browser.context({ colorScheme: theme, viewport, deviceScaleFactor: 1 });
      const page = await context.newPage();
      for (const path of paths) {
        await page.goto(url + path);
        const name = path.replace(/[^a-z]+/gi, '-').replace(/^-|-$/g, '') || 'overview';
        await page.screenshot({ path: join(process.env.SHOTS, `${name}-${device}-${theme}.png`), fullPage: true });
      }
      await context.close();
    }
  }
  browser.problems = [];
});
