<?php

declare(strict_types=1);

namespace Comity\Tests;

use Comity\Intent;
use Comity\Outcome;
use Comity\RequestOutcome;
use PHPUnit\Framework\TestCase;

/** The client agrees with the description that the service gives of itself. */
final class OpenApiTest extends TestCase
{
    public function testPathsFieldsAndWordsAreThoseOfTheService(): void
    {
        $world = new World();
        $api = json_decode(file_get_contents("$world->server/openapi.json"), true);
        $schemas = $api['components']['schemas'];

        $source = fn (string $name): string => file_get_contents(__DIR__ . "/../src/$name.php");
        preg_match_all("~'(/v1/[^']*)'~", $source('Client') . $source('Protocol'), $paths);
        self::assertCount(7, array_unique($paths[1]));
        foreach ($paths[1] as $path) {
            self::assertArrayHasKey('post', $api['paths'][$path] ?? [], $path);
        }

        self::assertSame($schemas['Intent']['enum'], array_column(Intent::cases(), 'value'));
        self::assertSame($schemas['Outcome']['enum'], array_column(Outcome::cases(), 'value'));
        self::assertSame([], array_diff(array_column(RequestOutcome::cases(), 'value'), $schemas['Outcome']['enum']));

        foreach (['Decision', 'Recorded'] as $name) {
            preg_match_all("~\\\$answer\['(\w+)'\]( \?\?)?~", $source($name), $fields, PREG_SET_ORDER);
            self::assertNotEmpty($fields);
            foreach ($fields as $field) {
                self::assertArrayHasKey($field[1], $schemas[$name]['properties']);
                if (!isset($field[2])) {
                    self::assertContains($field[1], $schemas[$name]['required']);
                }
            }
        }
        foreach (['field', 'value', 'allowed', 'detail', 'title'] as $field) {
            self::assertArrayHasKey($field, $schemas['Problem']['properties']);
        }
        foreach (['url', 'domain', 'intent', 'lease_ms', 'max_wait_ms'] as $field) {
            self::assertArrayHasKey($field, $schemas['Acquire']['properties']);
        }
        $report = ['permit', 'url', 'domain', 'intent', 'status', 'outcome', 'headers', 'retry_after', 'latency_ms'];
        foreach ($report as $field) {
            self::assertArrayHasKey($field, $schemas['Record']['properties']);
        }
        self::assertArrayHasKey('renewed', $schemas['Renewed']['properties']);
        self::assertArrayHasKey('checks', $schemas['Asks']['properties']);
        self::assertArrayHasKey('records', $schemas['Records']['properties']);
        self::assertArrayHasKey('results', $schemas['Decisions']['properties']);
    }
}
