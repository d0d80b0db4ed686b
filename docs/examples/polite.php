<?php
// Fetches URLs politely: php polite.php URL…
// COMITY_SERVER says where the service is, COMITY_TOKEN holds a token where it wants one.

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
    do { // the service waits for us, up to half a minute each time
        $decision = ask('/v1/acquire', ['url' => $url]);
        if ($decision['refused']) { // an operator closed the site: waiting does not help
            throw new RuntimeException($decision['reason']);
        }
    } while (!$decision['proceed']);

    $context = stream_context_create(['http' => ['ignore_errors' => true, 'follow_location' => 0]]);
    $body = @file_get_contents($url, false, $context);
    $told = ['permit' => $decision['permit']];
    if ($body === false) {
        $told['outcome'] = 'network_error';
    } else {
        $told['status'] = (int) explode(' ', $http_response_header[0])[1];
        $told['latency_ms'] = 0; // when it was written is not known here: the pace counts from the answer
        foreach ($http_response_header as $line) {
            if (stripos($line, 'retry-after:') === 0) {
                $told['retry_after'] = trim(substr($line, 12));
            }
        }
    }
    ask('/v1/record', $told);
    echo $told['status'] ?? $told['outcome'], " $url\n";
}
