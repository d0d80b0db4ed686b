// Starts `clients/world` for a test: the service and the sites, judged by the sites.
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { Client } from 'comity'

export class World {
  #program = spawn(fileURLToPath(new URL('../../world', import.meta.url)), { stdio: ['pipe', 'pipe', 'inherit'] })
  #lines = createInterface({ input: this.#program.stdout })[Symbol.asyncIterator]()

  /** A world for one test, with a service that runs, and a client for it. */
  static async start(t, rules) {
    const world = new World()
    t.after(() => world.end())
    world.server = (await world.do('serve', rules ? { rules } : {})).url
    world.client = new Client({ server: world.server })
    return world
  }

  async do(what, more = {}) {
    this.#program.stdin.write(`${JSON.stringify({ do: what, ...more })}\n`)
    const { value, done } = await this.#lines.next()
    if (done) throw new Error('the world ended')
    const answer = JSON.parse(value)
    if (answer.error) throw new Error(answer.error)
    return answer
  }

  async site(kind = 'open', http = '') {
    const { url, direct } = await this.do('site', { kind, http })
    const requests = async () => (await this.do('requests', { site: url })).requests
    return {
      url, direct, requests,
      pages: async () => (await requests()).filter((one) => one.status === 200).map((one) => one.path),
      early: async (delay, hold = 0) => (await this.do('early', { site: url, delay, hold })).early,
    }
  }

  /** Waits until a condition holds, however busy the machine is. */
  async until(condition, what) {
    const end = Date.now() + 120_000
    while (!(await condition())) {
      if (Date.now() > end) throw new Error(`not within 120 s: ${what}`)
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }

  async end() {
    this.client?.close()
    const ended = new Promise((resolve) => this.#program.once('exit', resolve))
    this.#program.stdin.end()
    await ended
  }
}

export const REFUSING = 'location / { add_header Retry-After 600 always; return 429; }'
/** Faster than the limited site allows. */
export const QUICK = '[default]\nmin_delay = "50ms"\nlearning = "off"\n'
