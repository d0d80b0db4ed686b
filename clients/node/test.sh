#!/usr/bin/env bash
# Builds the package and tests it, against a real comity, nginx, Redis and Crawlee. Arguments are passed to node --test.
set -euo pipefail
cd "$(dirname "$0")"

# The tests' libraries are kept between runs, and installed again when the requirements change.
wanted=$(node --version && sha256sum package.json | cut -d' ' -f1)
if [ "$(cat node_modules/.wanted 2>/dev/null)" != "$wanted" ]; then
    rm -rf node_modules
    npm install --no-package-lock --ignore-scripts --no-audit --no-fund --silent
    printf '%s\n' "$wanted" >node_modules/.wanted
fi
rm -rf dist
node_modules/.bin/tsc -p tsconfig.json
[ $# -gt 0 ] || set -- test/*.test.mjs
node --test --test-concurrency=2 "$@"
