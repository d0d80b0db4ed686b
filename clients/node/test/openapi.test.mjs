// The client agrees with the description that the service gives of itself.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { INTENTS, OUTCOMES } from 'comity'
import { World } from './world.mjs'

const source = (name) => readFile(new URL(`../src/${name}.ts`, import.meta.url), 'utf8')
const fields = (text, type) => {
  const body = new RegExp(`^export interface ${type} \\{\\n([^]*?)^\\}`, 'm').exec(text)
  assert.ok(body, type)
  return [...body[1].matchAll(/^  (\w+)(\??):/gm)].map(([, name, optional]) => ({ name, optional: optional !== '' }))
}

test('paths, fields and words are those of the service', async (t) => {
  const world = await World.start(t)
  const api = await (await fetch(`${world.server}/openapi.json`)).json()
  const { schemas } = api.components

  const calls = [...(await source('client')).matchAll(/'(\/v1\/[^']*)'/g)].map(([, path]) => path)
  assert.ok(calls.length >= 7)
  for (const path of calls) assert.ok(api.paths[path]?.post, path)

  assert.deepEqual([...INTENTS], schemas.Intent.enum)
  assert.deepEqual([...OUTCOMES], schemas.Outcome.enum)

  const types = await source('types')
  for (const [type, schema] of [
    ['Decision', 'Decision'], ['Report', 'Record'], ['Recorded', 'Recorded'], ['Renewed', 'Renewed'], ['Problem', 'Problem'],
  ]) {
    const required = schemas[schema].required ?? []
    for (const { name, optional } of fields(types, type)) {
      assert.ok(name in schemas[schema].properties, `${type}.${name}`)
      assert.ok(optional || required.includes(name), `${type}.${name} may be missing`)
    }
  }
  for (const name of ['url', 'domain', 'intent', 'lease_ms', 'max_wait_ms']) assert.ok(name in schemas.Acquire.properties, name)
  for (const name of ['permit', 'lease_ms']) assert.ok(name in schemas.Renew.properties, name)
  assert.ok('checks' in schemas.Asks.properties && 'records' in schemas.Records.properties)
  assert.ok('results' in schemas.Decisions.properties && 'results' in schemas.Recordeds.properties)
})
