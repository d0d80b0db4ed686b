// Fetches URLs politely with undici: node undici.mjs URL…
// COMITY_SERVER is the address of the service, COMITY_TOKEN its token if it requires one.
import { Client } from 'comity'
import { request } from 'undici'

const client = new Client()

for (const url of process.argv.slice(2)) {
  await client.withPermit(url, async (permit) => {
    const response = permit.response(await request(url))
    await response.body.dump() // or text(), json(): inside the block, so that the next request waits for the body
    console.log(response.statusCode, url)
  })
}
