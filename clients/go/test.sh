#!/usr/bin/env bash
# Checks and tests the module against a real comity and nginx. Arguments are passed to go test.
set -euo pipefail
cd "$(dirname "$0")"

unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { printf 'not formatted: %s\n' "$unformatted" >&2 && exit 1; }
go vet ./...
go test -count=1 -parallel 4 "$@" ./...
