#!/bin/sh
# Fetches URLs politely with curl: polite.sh URL…
# COMITY_SERVER is the URL of the service, COMITY_TOKEN its token if it requires one.
set -eu
server=${COMITY_SERVER:-http://127.0.0.1:7878}

ask() { # PATH BODY: prints the response, or exits
    curl --silent --show-error --fail-with-body --max-time 60 "$server$1" --header 'Content-Type: application/json' \
        ${COMITY_TOKEN:+--header "Authorization: Bearer $COMITY_TOKEN"} --data "$2"
}

for url in "$@"; do
    permit=
    while [ -z "$permit" ]; do # blocks until it is our turn, for up to 30 s per call
        answer=$(ask /v1/acquire "{\"url\": \"$url\", \"lease_ms\": 310000}")
        case $answer in *'"refused":true'*) # an operator paused the site: waiting won't help
            echo "$answer" >&2
            exit 1 ;;
        esac
        permit=$(printf %s "$answer" | sed -n 's/.*"permit":"\([^"]*\)".*/\1/p')
    done
    # The status, and how long ago the request was written.
    answer=$(curl --silent --max-time 300 --output page --dump-header head \
        --write-out '%{http_code} %{time_total} %{time_pretransfer}' "$url") || answer=
    status=${answer%% *}
    case $status in
        '' | 000) report='"outcome": "network_error"' ;;
        *)
            took=$(echo "$answer" | awk '{ print int(($2 - $3) * 1000) }')
            report="\"status\": $status, \"latency_ms\": $took"
            wait=$(tr -d '\r"' <head | sed -n 's/^[Rr]etry-[Aa]fter: *//p')
            [ -z "$wait" ] || report="$report, \"retry_after\": \"$wait\""
            ;;
    esac
    ask /v1/record "{\"permit\": \"$permit\", $report}" >/dev/null
    echo "$status $url"
done
