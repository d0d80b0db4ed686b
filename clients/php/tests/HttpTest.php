<?php

declare(strict_types=1);

namespace Comity\Tests;

use Comity\Client;
use Comity\GuzzleMiddleware;
use Comity\NotSent;
use Comity\PoliteClient;
use GuzzleHttp\Exception\ConnectException;
use GuzzleHttp\HandlerStack;
use GuzzleHttp\Promise\Utils;
use GuzzleHttp\Psr7\Request;
use PHPUnit\Framework\TestCase;
use Psr\Http\Client\ClientExceptionInterface;

/** The PSR-18 client and the middleware for Guzzle, judged by the site. */
final class HttpTest extends TestCase
{
    private static function guzzle(World $world, array $options = []): \GuzzleHttp\Client
    {
        $stack = HandlerStack::create();
        $stack->push(new GuzzleMiddleware($world->client));
        return new \GuzzleHttp\Client(['handler' => $stack] + $options);
    }

    public function testFiftyConcurrentRequestsShareOnePaceAndNoneIsEarly(): void
    {
        $world = new World();
        $site = $world->site();
        $guzzle = self::guzzle($world);
        $responses = Utils::unwrap(array_map(fn (int $page) => $guzzle->getAsync("$site/$page"), range(1, 50)));
        self::assertSame([200], array_values(array_unique(array_map(fn ($one) => $one->getStatusCode(), $responses))));
        self::assertCount(50, array_unique($world->paths($site)));
        self::assertSame([], $world->early($site, 0.2));
    }

    public function testARateLimitedResponseHoldsEveryProcess(): void
    {
        $world = new World(World::QUICK);
        $site = $world->site('limited');
        $processes = [];
        foreach (range(1, 3) as $one) {
            $urls = array_map(fn (int $page) => "$site/$one/$page", range(1, 5));
            $processes[] = proc_open([PHP_BINARY, __DIR__ . '/fetch.php', $world->server, ...$urls], [], $_);
        }
        self::assertSame([0, 0, 0], array_map(proc_close(...), $processes));
        self::assertNotEmpty($world->paths($site, 429), 'the site has limited somebody');
        self::assertCount(15, array_unique($world->paths($site)));
        self::assertSame([], $world->early($site, 0.05, 2));
    }

    public function testEachHopOfARedirectHasItsOwnPermit(): void
    {
        $world = new World();
        $site = $world->site('absolute_redirect off; location = /a { return 302 /b; } location / { empty_gif; }');
        self::assertSame(200, self::guzzle($world)->get("$site/a")->getStatusCode());
        self::assertCount(2, $world->requests($site));
        self::assertSame([], $world->early($site, 0.2));
    }

    public function testARequestThatFailsIsRecorded(): void
    {
        $world = new World(World::NO_DELAY);
        $dead = $world->site('location / { return 444; }');
        try {
            self::guzzle($world)->get($dead);
            self::fail('no exception');
        } catch (ConnectException) {
            self::assertSame('backoff', $world->client->peek($dead)->limit);
        }
        $client = new PoliteClient(new \GuzzleHttp\Client(['timeout' => 0.2]), $world->client);
        $silent = stream_socket_server('tcp://127.0.0.1:0');
        $url = 'http://' . stream_socket_get_name($silent, false);
        try {
            $client->sendRequest(new Request('GET', $url));
            self::fail('no exception');
        } catch (ClientExceptionInterface) {
            self::assertSame('backoff', $world->client->peek($url)->limit);
        }
    }

    public function testARateLimitedResponseIsRecordedAlthoughGuzzleThrows(): void
    {
        $world = new World();
        $site = $world->site('location / { add_header Retry-After 600 always; return 429; }');
        try {
            self::guzzle($world)->get($site);
            self::fail('no exception');
        } catch (\GuzzleHttp\Exception\ClientException) {
            $decision = $world->client->peek($site);
            self::assertSame('retry_after', $decision->limit);
            self::assertGreaterThan(300_000, $decision->waitMs);
        }
    }

    public function testARequestThatIsCancelledReturnsItsPermit(): void
    {
        $world = new World(World::NO_DELAY);
        $silent = stream_socket_server('tcp://127.0.0.1:0');
        $url = 'http://' . stream_socket_get_name($silent, false);
        $handler = new \GuzzleHttp\Handler\CurlMultiHandler();
        $stack = HandlerStack::create($handler);
        $stack->push(new GuzzleMiddleware($world->client));
        $promise = (new \GuzzleHttp\Client(['handler' => $stack]))->getAsync($url);
        while (!($peer = @stream_socket_accept($silent, 0))) {
            $handler->tick();
        }
        self::assertFalse($world->client->peek($url)->proceed);
        $promise->cancel();
        Utils::queue()->run();
        self::assertTrue($world->client->peek($url)->proceed);
        fclose($peer);
    }

    public function testWithoutAPermitNothingIsSent(): void
    {
        $away = new Client('127.0.0.1:1');
        $sent = fn () => self::fail('it was sent');
        $inner = new class ($sent) implements \Psr\Http\Client\ClientInterface {
            public function __construct(private readonly \Closure $sent)
            {
            }

            public function sendRequest(\Psr\Http\Message\RequestInterface $request): \Psr\Http\Message\ResponseInterface
            {
                return ($this->sent)();
            }
        };
        try {
            (new PoliteClient($inner, $away))->sendRequest(new Request('GET', 'http://example.org/'));
            self::fail('no exception');
        } catch (NotSent $error) {
            self::assertInstanceOf(\Comity\Unavailable::class, $error->getPrevious());
            self::assertSame('http://example.org/', (string) $error->getRequest()->getUri());
        }
        $stack = HandlerStack::create();
        $stack->push(new GuzzleMiddleware($away));
        $this->expectException(NotSent::class);
        (new \GuzzleHttp\Client(['handler' => $stack]))->get('http://example.org/');
    }
}
