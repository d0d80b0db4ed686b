// Chromium, with everything it sends going through a proxy that writes down where to. So a request to another host is seen
// on the wire, whatever the browser says about it.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { chromium } from 'playwright-core';

// Where Chromium itself reports to. No page may ask for anything there either: `asked` has what pages ask for.
const OWN = ['update.googleapis.com', 'accounts.google.com', 'content-autofill.googleapis.com',
  'optimizationguide-pa.googleapis.com', 'clients2.google.com', 'redirector.gvt1.com', 'www.google.com', 'safebrowsingohttpgateway.googleapis.com'];

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** A forward proxy that lets through what is for this machine, and keeps a list of all requests. */
class Proxy {
  constructor() {
    this.seen = [];
    this.server = http.createServer((request, response) => {
      const url = new URL(request.url);
      this.seen.push(url);
      if (url.hostname !== '127.0.0.1') {
        response.writeHead(502).end();
        return;
      }
      const passed = http.request(url, { method: request.method, headers: request.headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.rawHeaders);
        // Streams may have nothing to say for a while.
        response.flushHeaders();
        answer.pipe(response);
      });
      passed.on('error', () => response.destroy());
      response.on('close', () => passed.destroy());
      request.pipe(passed);
    });
    this.server.on('connect', (request, socket) => {
      this.seen.push(new URL(`https://${request.url}`));
      socket.end('HTTP/1.1 502 Bad Gateway\r\n\r\n');
    });
  }

  async start() {
    await new Promise((done) => this.server.listen(0, '127.0.0.1', done));
    return `http://127.0.0.1:${this.server.address().port}`;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

export class Browser {
  static async start() {
    const browser = new Browser();
    browser.proxy = new Proxy();
    browser.problems = [];
    browser.asked = [];
    const server = await browser.proxy.start();
    browser.chromium = await chromium.launch({
      executablePath: '/usr/bin/chromium',
      args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
        '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
      proxy: { server, bypass: '<-loopback>' },
    });
    return browser;
  }

  /** A window of its own, without cookies. */
  async context(options = {}) {
    const context = await this.chromium.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    context.on('page', (page) => this.listen(page));
    return context;
  }

  /** Every error that a page reports counts. */
  listen(page) {
    page.on('request', (request) => this.asked.push(new URL(request.url())));
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) this.problems.push(`console: ${message.text()} (${page.url()})`);
    });
    page.on('pageerror', (error) => this.problems.push(`error: ${error} (${page.url()})`));
    page.on('dialog', (dialog) => {
      this.problems.push(`dialog: ${dialog.message()} (${page.url()})`);
      dialog.dismiss();
    });
  }

  /** Fails if a page reported an error, or if anything was sent to another host. */
  assertQuiet(url) {
    assert.deepEqual(this.problems, []);
    const elsewhere = (all) => all.filter((seen) => seen.origin !== url).map(String);
    assert.deepEqual(elsewhere(this.asked), [], 'requests of a page to other hosts');
    // On the wire there is also what Chromium sends on its own account, whatever it shows.
    const wire = this.proxy.seen.filter((seen) => !OWN.includes(seen.hostname));
    assert.deepEqual(elsewhere(wire), [], 'requests to other hosts on the wire');
  }

  async stop() {
    await this.chromium.close();
    this.proxy.stop();
  }
}

/** What axe-core has to say about a page. */
export const violations = async (page) => {
  // Not as a script of the page, which its policy would refuse.
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 200)).join(' | ')}`);
};

/** How many times the page has been brought up to date. */
export const refreshed = (page) => page.evaluate(() => Number(document.body.dataset.refreshed || 0));

export const login = async (page, url, token, to = '/') => {
  await page.goto(url + to);
  await page.fill('#token', token);
  await page.click('button.main');
  await page.waitForURL(url + to);
};
