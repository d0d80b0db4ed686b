<?php

declare(strict_types=1);

namespace Comity\Tests;

use Comity\Client;

/** Runs `clients/world` for a test: the service and the sites, judged by the sites. */
final class World
{
    public const NO_DELAY = "[default]\nmin_delay = \"0s\"\nlearning = \"off\"\nbackoff_base = \"10m\"\nbackoff_max = \"10m\"\n";
    /** Faster than the limited site allows. */
    public const QUICK = "[default]\nmin_delay = \"50ms\"\nlearning = \"off\"\n";

    public readonly string $server;
    public readonly Client $client;
    /** @var resource */
    private $program;
    /** @var array<int, resource> */
    private array $pipes = [];

    public function __construct(?string $rules = null)
    {
        $this->program = proc_open([__DIR__ . '/../../world'], [['pipe', 'r'], ['pipe', 'w']], $pipes);
        $this->pipes = $pipes;
        $this->server = $this->do('serve', $rules === null ? [] : ['rules' => $rules])['url'];
        $this->client = new Client($this->server);
    }

    public function __destruct()
    {
        array_map(fclose(...), $this->pipes);
        proc_close($this->program);
    }

    public function do(string $what, array $more = []): array
    {
        fwrite($this->pipes[0], json_encode(['do' => $what] + $more) . "\n");
        $answer = json_decode(fgets($this->pipes[1]) ?: '{"error": "the world ended"}', true);
        return isset($answer['error']) ? throw new \RuntimeException($answer['error']) : $answer;
    }

    /** Starts a site and returns its URL. */
    public function site(string $kind = 'open'): string
    {
        return $this->do('site', ['kind' => $kind])['url'];
    }

    public function requests(string $site): array
    {
        return $this->do('requests', ['site' => $site])['requests'];
    }

    /** @return list<string> */
    public function paths(string $site, int $status = 200): array
    {
        return array_column(array_filter($this->requests($site), fn ($one) => $one['status'] === $status), 'path');
    }

    public function early(string $site, float $delay, float $hold = 0): array
    {
        return $this->do('early', ['site' => $site, 'delay' => $delay, 'hold' => $hold])['early'];
    }

    public function pause(string $domain): void
    {
        $http = ['method' => 'PATCH', 'header' => 'Content-Type: application/json', 'content' => '{"paused": true}'];
        file_get_contents("$this->server/v1/domains/$domain", false, stream_context_create(['http' => $http]));
    }
}
