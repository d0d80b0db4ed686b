// Fetches URLs politely with got: node got.mjs URL…
// COMITY_SERVER is the address of the service, COMITY_TOKEN its token if it requires one.
import { Client } from 'comity'
import got from 'got'

const client = new Client()

for (const url of process.argv.slice(2)) {
  const response = await client.withPermit(url, async (permit) =>
    // Without retries and redirects of its own: each would be a request without a permit.
    permit.response(await got(url, { retry: { limit: 0 }, followRedirect: false, throwHttpErrors: false })))
  console.log(response.statusCode, url)
}
