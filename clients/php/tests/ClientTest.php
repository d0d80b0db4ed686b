<?php

declare(strict_types=1);

namespace Comity\Tests;

use Comity\Client;
use Comity\Intent;
use Comity\Invalid;
use Comity\Outcome;
use Comity\Permit;
use Comity\Refused;
use Comity\TimedOut;
use Comity\Unavailable;
use GuzzleHttp\Exception\ConnectException;
use GuzzleHttp\Psr7\Request;
use PHPUnit\Framework\TestCase;

/** The client against the real service. */
final class ClientTest extends TestCase
{
    public function testCheckReservesTheSlotAndRecordReportsTheOutcome(): void
    {
        $world = new World();
        $client = $world->client;
        $decision = $client->check('http://www.example.org/a');
        self::assertTrue($decision->proceed);
        self::assertSame('example.org', $decision->domain);
        self::assertFalse($client->check('example.org')->proceed);
        $recorded = $client->record(['permit' => $decision->permit, 'status' => 429, 'retry_after' => '600']);
        self::assertSame(['rate_limited', 'fresh'], [$recorded->outcome, $recorded->standing]);
        self::assertNotNull($recorded->heldUntil);
        self::assertSame('repeated', $client->record(['permit' => $decision->permit, 'status' => 200])->standing);
        self::assertSame('retry_after', $client->peek('example.org')->limit);
        self::assertGreaterThan(300_000, $client->acquire('example.org', 0)->waitMs);
    }

    public function testBatchesAreAnsweredInOrder(): void
    {
        $world = new World();
        $client = $world->client;
        $decisions = $client->checkMany(['a.example', 'http://b.example/', 'a.example']);
        self::assertSame([true, true, false], array_column($decisions, 'proceed'));
        $reports = array_map(fn ($one) => ['permit' => $one->permit, 'status' => 200], array_slice($decisions, 0, 2));
        self::assertSame(['a.example', 'b.example'], array_column($client->recordMany($reports), 'domain'));
        self::assertSame([], $client->recordMany([]));
    }

    public function testHoweverABlockEndsItsPermitIsRecorded(): void
    {
        $world = new World();
        $client = $world->client;
        $request = new Request('GET', 'http://example.org/');
        $broken = new ConnectException('x', $request, null, ['errno' => 7]);
        $slow = new ConnectException('x', $request, null, ['errno' => 28]);
        $sends = [
            'broken.long.example' => [fn () => throw $broken, 'backoff'],
            'slow.long.example' => [fn () => throw $slow, 'backoff'],
            'limited.long.example' => [fn (Permit $it) => $it->answered(429, ['Retry-After' => ['600']]), 'retry_after'],
            'closed.long.example' => [fn (Permit $it) => $it->closeUntil(new \DateTimeImmutable('+10 min')), 'retry_after'],
            'quota.long.example' => [fn (Permit $it) => $it->outcome(Outcome::RateLimited), 'backoff'],
            'mine.long.example' => [fn () => throw new \DomainException('a bug of my own'), 'min_delay'],
            'fine.long.example' => [fn () => 'a page', 'min_delay'],
        ];
        foreach ($sends as $domain => [$send, $limit]) {
            try {
                $client->withPermit($domain, $send);
            } catch (ConnectException | \DomainException) {
            }
            self::assertSame($limit, $client->peek($domain)->limit, $domain);
        }
    }

    public function testAPermitThatIsReleasedOrForgottenBlocksNobody(): void
    {
        $world = new World(World::NO_DELAY);
        $client = $world->client;
        $decision = $client->check('example.org');
        self::assertSame('lease', $client->check('example.org')->limit);
        $client->release($decision);
        $permit = $client->permit('example.org');
        self::assertSame('lease', $client->check('example.org')->limit);
        unset($permit);
        self::assertTrue($client->check('example.org')->proceed);
    }

    public function testALeaseCanBeRenewed(): void
    {
        $world = new World(World::NO_DELAY);
        $client = $world->client;
        $permit = $client->permit('example.org', leaseMs: 4_000);
        for ($nth = 0; $nth < 6; $nth += 1) {
            sleep(1);
            $permit->keep();
        }
        self::assertSame('lease', $client->check('example.org')->limit);
        self::assertTrue($client->renew($permit->decision));
        $permit->done();
        self::assertFalse($client->renew($permit->decision));
    }

    public function testATimeoutAndAPauseAreErrorsThatSayWhy(): void
    {
        $world = new World();
        $world->client->closeUntil('closed.example', new \DateTimeImmutable('+10 min'));
        try {
            $world->client->permit('closed.example', timeoutMs: 300);
            self::fail('nothing may be sent');
        } catch (TimedOut $error) {
            self::assertSame('retry_after', $error->decision->limit);
        }
        $world->pause('paused.example');
        $this->expectException(Refused::class);
        $world->client->permit('paused.example');
    }

    public function testAnInvalidCallNamesTheField(): void
    {
        $world = new World();
        try {
            $world->client->record(['domain' => 'example.org', 'outcome' => 'fine']);
            self::fail('it was accepted');
        } catch (Invalid $error) {
            self::assertSame([422, 'outcome'], [$error->status, $error->field]);
            self::assertStringContainsString('success', $error->allowed);
        }
    }

    public function testAServiceThatIsAwayIsAClearError(): void
    {
        $this->expectException(Unavailable::class);
        $this->expectExceptionMessageMatches("~^http://127\.0\.0\.1:1: the decision service can't be reached: .+~");
        (new Client('127.0.0.1:1'))->permit('example.org');
    }

    public function testACallerInLineSurvivesARestartOfTheService(): void
    {
        $world = new World();
        $world->client->withPermit('example.org', fn (Permit $it) => $it->answered(429, ['Retry-After' => '4']));
        $script = __DIR__ . '/wait.php';
        $waiting = proc_open([PHP_BINARY, $script, $world->server, 'example.org'], [1 => ['pipe', 'w']], $pipes);
        while ($world->do('waiting', ['domain' => 'example.org'])['waiting'] === 0) {
            usleep(20_000);
        }
        $world->do('stop');
        $world->do('start');
        self::assertSame('success', stream_get_contents($pipes[1]));
        self::assertSame(0, proc_close($waiting));
    }

    public function testOnlyTheTokenInUseIsAccepted(): void
    {
        $binary = getenv('COMITY_BIN');
        $folder = sys_get_temp_dir();
        $made = shell_exec("cd $folder && $binary --store memory: serve --make-token use 2>&1");
        self::assertSame(1, preg_match('/(?<hash>use:sha256:\w+)/', $made, $found), $made);
        self::assertSame(1, preg_match('/^\W*(?<token>[\w.-]{20,})\W*$/m', $made, $secret), $made);
        $world = new World("[serve]\ntokens = [\"$found[hash]\"]\n");
        self::assertTrue((new Client($world->server, $secret['token']))->check('example.org', Intent::Api)->proceed);
        $this->expectException(Invalid::class);
        $world->client->check('example.org');
    }
}
