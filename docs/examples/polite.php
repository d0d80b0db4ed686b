<?php
// Fetches URLs politely: php polite.php URL…
// COMITY_SERVER is the URL of the service, COMITY_TOKEN its token if it requires one.

function ask(string $path, array $body): array
{
    $server = getenv('COMITY_SERVER') ?: 'http://127.0.0.1:7878';
    $headers = ['Content-Type: application/json'];
    if ($token = getenv('COMITY_TOKEN')) {
        $headers[] = "Authorization: Bearer $token";
    }
    $context = stream_context_create(['http' => [
        'method' => 'POST', 'header' => $headers, 'content' => json_encode($body),
        'ignore_errors' => true, 'timeout' => 60,
    ]]);
    $answer = json_decode(file_get_contents($server . $path, false, $context), true);
    if (isset($answer['detail'])) {
        throw new RuntimeException($answer['detail']);
    }
    return $answer;
}

foreach (array_slice($argv, 1) as $url) {
    do { // blocks until it is our turn, for up to 30 s per call
        $decision = ask('/v1/acquire', ['url' => $url]);
        if ($decision['refused']) { // an operator paused the site: waiting won't help
            throw new RuntimeException($decision['reason']);
        }
    } while (!$decision['proceed']);

    $context = stream_context_create(['http' => ['ignore_errors' => true, 'follow_location' => 0]]);
    $body = @file_get_contents($url, false, $context);
    $report = ['permit' => $decision['permit']];
    if ($body === false) {
        $report['outcome'] = 'network_error';
    } else {
        $report['status'] = (int) explode(' ', $http_response_header[0])[1];
        $report['latency_ms'] = 0; // we don't know when it was sent, so the pace counts from the response
        foreach ($http_response_header as $line) {
            if (stripos($line, 'retry-after:') === 0) {
                $report['retry_after'] = trim(substr($line, 12));
            }
        }
    }
    ask('/v1/record', $report);
    echo $report['status'] ?? $report['outcome'], " $url\n";
}
