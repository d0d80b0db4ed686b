// What the tests look at: test sites, a store, jobs that fetch from the sites, and the service with its dashboard. All of it
// runs on free ports of this machine, in a temporary folder, and is stopped at the end.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const COMITY = process.env.COMITY;

export const TOKENS = {
  view: 'view-token-of-the-tests',
  use: 'use-token-of-the-tests-1',
  admin: 'admin-token-of-the-tests',
};

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Waits until `check` returns something truthy, and returns that. */
export const until = async (what, check, seconds = 60) => {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    let problem = '';
    const found = await Promise.resolve(check()).catch((error) => ((problem = `: ${error}`), false));
    if (found) return found;
    if (Date.now() > end) throw new Error(`timed out: ${what}${problem}`);
    await sleep(100);
  }
};

export class World {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), 'comity-browser-'));
    this.running = [];
    this.env = { PATH: process.env.PATH, HOME: this.folder, TMPDIR: this.folder };
    this.configure('');
  }

  /** Writes the configuration: short delays for test sites, and what a test adds. */
  configure(more) {
    writeFileSync(join(this.folder, 'comity.toml'), `[default]
min_delay = "200ms"

[http]
contact = "tests@example.org"
allow_private = ["127.0.0.0/8"]

${more}`);
  }

  /** Starts a command that keeps running; its first line of JSON, if `ready` asks for it. */
  async start(args, { ready = false } = {}) {
    const child = spawn(COMITY, args, { cwd: this.folder, env: this.env, stdio: ['ignore', 'pipe', 'pipe'] });
    const output = { text: '' };
    child.stderr.on('data', (data) => (output.text += data));
    this.running.push(child);
    child.output = output;
    child.over = new Promise((done) => child.on('exit', (code) => done(code)));
    if (!ready) {
      child.stdout.on('data', (data) => (output.text += data));
      return child;
    }
    const lines = createInterface({ input: child.stdout });
    child.first = await new Promise((done, failed) => {
      lines.once('line', (line) => done(JSON.parse(line)));
      child.on('exit', (code) => failed(new Error(`comity ${args.join(' ')}: exit ${code}\n${output.text}`)));
    });
    return child;
  }

  /** Runs a command to its end, and returns what it printed. */
  async run(...args) {
    const child = await this.start(args);
    const code = await child.over;
    return { code, text: child.output.text };
  }

  async serve(...args) {
    const service = await this.start(['--json', '--log-level', 'warn', 'serve', '--listen', '127.0.0.1:0', ...args], { ready: true });
    service.url = service.first.listening;
    if (!service.url) throw new Error(`comity serve: ${JSON.stringify(service.first)}`);
    return service;
  }

  async playground() {
    const child = await this.start(['--json', 'playground', '--listen', '127.0.0.1:0'], { ready: true });
    const sites = {};
    for (const site of child.first.sites) sites[site.name] = site.url;
    return sites;
  }

  /** Starts a job that fetches these URLs. */
  async job(name, urls, ...more) {
    const file = join(this.folder, `${name}.txt`);
    writeFileSync(file, urls.join('\n'));
    return this.start(['--quiet', 'fetch', '--input', file, '--job', name, '--format', 'none', ...more]);
  }

  tokens() {
    const lines = Object.entries(TOKENS).map(([role, token]) => `${role}:${token}`);
    writeFileSync(join(this.folder, 'tokens'), `${lines.join('\n')}\n`, { mode: 0o600 });
    return '[serve]\ntokens_file = "tokens"\n';
  }

  async stop(child, signal = 'SIGTERM') {
    if (child.exitCode === null && child.signalCode === null) {
      child.kill(signal);
      const killed = setTimeout(() => child.kill('SIGKILL'), 15000);
      await child.over;
      clearTimeout(killed);
    }
  }

  async end() {
    for (const child of this.running.reverse()) await this.stop(child);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A request without a browser: status, headers, body, and how long the first byte took. */
export const request = (url, { method = 'GET', headers = {}, body } = {}) =>
  new Promise((done, failed) => {
    const begun = performance.now();
    const sent = http.request(url, { method, headers }, (response) => {
      const first = performance.now() - begun;
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (data) => (text += data));
      response.on('end', () => done({ status: response.statusCode, headers: response.headers, text, first }));
      response.on('error', failed);
    });
    sent.on('error', failed);
    sent.end(body);
  });

/** Calls the API. */
export const api = async (url, method, path, body, token) => {
  const headers = { 'Content-Type': 'application/json' };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await request(url + path, { method, headers, body: body && JSON.stringify(body) });
  if (answer.status >= 400) throw new Error(`${method} ${path}: ${answer.status} ${answer.text}`);
  return JSON.parse(answer.text);
};

export const pages = (site, from, to) =>
  Array.from({ length: to - from + 1 }, (_, nth) => `${site}/page/${from + nth}`);
