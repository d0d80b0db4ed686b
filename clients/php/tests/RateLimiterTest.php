<?php

declare(strict_types=1);

namespace Comity\Tests;

use Comity\EnforceRateLimitInterface;
use Comity\RateLimitDecision;
use Comity\RateLimiter;
use Comity\RateLimitRequest;
use Comity\RequestOutcome;
use PHPUnit\Framework\TestCase;

/** The interface `EnforceRateLimitInterface`, as it is used. */
final class RateLimiterTest extends TestCase
{
    public function testTheInterfaceIsTheAgreedOne(): void
    {
        $signature = function (string $class, string $method): array {
            $found = [];
            foreach ((new \ReflectionMethod($class, $method))->getParameters() as $one) {
                $default = $one->isDefaultValueAvailable() ? [$one->getDefaultValue()] : [];
                $found[] = [(string) $one->getType(), $one->getName(), ...$default];
            }
            return $found;
        };
        $interface = EnforceRateLimitInterface::class;
        self::assertSame([[RateLimitRequest::class, 'request']], $signature($interface, 'check'));
        self::assertSame([['string', 'domain'], ['Comity\RequestOutcome', 'outcome']], $signature($interface, 'record'));
        self::assertSame([['string', 'domain'], ['string', 'requestIntent']], $signature(RateLimitRequest::class, '__construct'));
        self::assertSame(
            [['bool', 'proceed'], ['int', 'waitMs'], ['?string', 'reason', null]],
            $signature(RateLimitDecision::class, '__construct'),
        );
        foreach ([RateLimitRequest::class, RateLimitDecision::class] as $class) {
            self::assertTrue((new \ReflectionClass($class))->isFinal());
            self::assertTrue((new \ReflectionProperty($class, $class === RateLimitRequest::class ? 'domain' : 'waitMs'))->isReadOnly());
        }
        self::assertSame(
            ['Success' => 'success', 'RateLimited' => 'rate_limited', 'ServerError' => 'server_error', 'Timeout' => 'timeout'],
            array_column(RequestOutcome::cases(), 'value', 'name'),
        );
    }

    public function testADecisionSaysHowLongToWaitAndWhy(): void
    {
        $world = new World();
        $limiter = new RateLimiter($world->client);
        $request = new RateLimitRequest(domain: 'finance.example', requestIntent: 'fetch');
        self::assertEquals(new RateLimitDecision(true, 0), $limiter->check($request));
        $limiter->record('finance.example', RequestOutcome::Success);
        $decision = $limiter->check($request);
        self::assertFalse($decision->proceed);
        self::assertGreaterThan(0, $decision->waitMs);
        self::assertNotEmpty($decision->reason);
    }

    public function testWhoeverWaitsAndSendsWithoutAskingAgainIsRecorded(): void
    {
        $world = new World();
        $limiter = new RateLimiter($world->client);
        $limiter->record('finance.example', RequestOutcome::RateLimited, '600');
        self::assertSame('retry_after', $world->client->peek('finance.example')->limit);
        $decision = $limiter->check(new RateLimitRequest('finance.example', 'api'));
        self::assertGreaterThan(300_000, $decision->waitMs);
    }

    public function testEveryOutcomeIsKnownToTheService(): void
    {
        $world = new World();
        $limiter = new RateLimiter($world->client);
        foreach (RequestOutcome::cases() as $outcome) {
            $limiter->check(new RateLimitRequest("$outcome->name.example", 'search'));
            $limiter->record("$outcome->name.example", $outcome);
        }
        $this->expectException(\ValueError::class);
        $limiter->check(new RateLimitRequest('finance.example', 'browse'));
    }

    public function testWhatNobodyRecordedBlocksNobody(): void
    {
        $world = new World(World::NO_DELAY);
        $limiter = new RateLimiter($world->client);
        self::assertTrue($limiter->check(new RateLimitRequest('finance.example', 'fetch'))->proceed);
        self::assertSame('lease', $world->client->peek('finance.example')->limit);
        unset($limiter);
        self::assertTrue($world->client->peek('finance.example')->proceed);
    }
}
