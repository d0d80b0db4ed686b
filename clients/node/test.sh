#!/usr/bin/env bash
# Builds the package and tests it, against a real comity, nginx, Redis and Crawlee. Arguments are passed to node --test.
set -euo pipefail
cd "$(dirname "$0")"

./install
rm -rf dist
node_modules/.bin/tsc -p tsconfig.json
node_modules/.bin/tsc -p tsconfig.test.json
[ $# -gt 0 ] || set -- test/*.test.mjs
node --test --test-concurrency=2 "$@"
