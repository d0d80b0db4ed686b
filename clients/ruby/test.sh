#!/usr/bin/env bash
# Tests the gem against a real comity, nginx, Redis and Sidekiq. Arguments are passed to minitest.
set -euo pipefail
cd "$(dirname "$0")"
ruby -W:no-deprecated -Itest -e 'Dir["./test/*_test.rb"].each { |file| require file }' -- "$@"
