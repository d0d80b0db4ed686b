#!/usr/bin/env bash
# Tests the package against a real comity and nginx. Arguments are passed to phpunit.
set -euo pipefail
cd "$(dirname "$0")"
phpunit --do-not-cache-result --bootstrap tests/bootstrap.php --fail-on-warning --colors=never "${@:-tests}"
