#!/bin/sh
# Fetches URLs politely with curl: polite.sh URL…
# COMITY_SERVER says where the service is, COMITY_TOKEN holds a token where it wants one.
set -eu
server=${COMITY_SERVER:-http://127.0.0.1:7878}

ask() { # PATH BODY
    curl --silent --show-error --fail-with-body "$server$1" --header 'Content-Type: application/json' \
        ${COMITY_TOKEN:+--header "Authorization: Bearer $COMITY_TOKEN"} --data "$2"
}

field() { # NAME: the text of a field of the JSON on stdin
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}

for url in "$@"; do
    permit=
    while [ -z "$permit" ]; do # the service waits for us, up to half a minute each time
        permit=$(ask /v1/acquire "{\"url\": \"$url\"}" | field permit)
    done
    status=$(curl --silent --output page --dump-header head --write-out '%{http_code}' "$url") || status=
    case $status in
        '' | 000) told='"outcome": "network_error"' ;;
        *)
            told="\"status\": $status"
            wait=$(sed -n 's/^retry-after: *\([^\r"]*\).*/\1/Ip' head)
            [ -z "$wait" ] || told="$told, \"retry_after\": \"$wait\""
            ;;
    esac
    ask /v1/record "{\"permit\": \"$permit\", $told}" >/dev/null
    echo "$status $url"
done
