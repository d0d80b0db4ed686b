<?php

// Fetches pages through the PSR-18 client: php fetch.php SERVER URL…
declare(strict_types=1);

require __DIR__ . '/bootstrap.php';

$client = new Comity\PoliteClient(new GuzzleHttp\Client(), new Comity\Client($argv[1]));
foreach (array_slice($argv, 2) as $url) {
    do {
        $response = $client->sendRequest(new GuzzleHttp\Psr7\Request('GET', $url));
    } while ($response->getStatusCode() === 429);
}
