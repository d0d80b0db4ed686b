<?php

declare(strict_types=1);

namespace Comity;

use GuzzleHttp\Exception\ConnectException;
use GuzzleHttp\Promise\Create;
use GuzzleHttp\Promise\Promise;
use GuzzleHttp\Promise\PromiseInterface;
use GuzzleHttp\Promise\Utils;
use GuzzleHttp\Psr7\Request;
use GuzzleHttp\TransferStats;
use Psr\Http\Message\RequestInterface;
use Psr\Http\Message\ResponseInterface;

/**
 * Guzzle asks before each request and records the outcome: `$stack->push(new GuzzleMiddleware())`. Push it last, so that
 * redirects and retries come here one by one. Requests that run concurrently wait in line concurrently.
 */
final class GuzzleMiddleware
{
    /**
     * @param int|null $timeoutMs how long to wait for a permit; by default as long as it takes
     */
    public function __construct(
        private readonly Client $client = new Client(),
        private readonly Intent $intent = Intent::Fetch,
        private readonly ?int $timeoutMs = null,
    ) {
    }

    public function __invoke(callable $handler): callable
    {
        return fn (RequestInterface $request, array $options): PromiseInterface
            => $this->promise($this->send($handler, $request, $options));
    }

    /** @return \Generator<int, PromiseInterface, mixed, ResponseInterface> */
    private function send(callable $handler, RequestInterface $request, array $options): \Generator
    {
        $synchronous = array_intersect_key($options, ['synchronous' => true]);
        $url = (string) $request->getUri()->withUserInfo('')->withFragment('');
        $flow = Protocol::wait($url, $this->intent, $this->client->leaseMs, $this->timeoutMs);
        try {
            while ($flow->valid()) {
                try {
                    $reply = yield $this->ask($handler, $flow->current(), $synchronous);
                } catch (ConnectException $error) {
                    $flow->throw($this->client->unreachable($error->getMessage(), false, $error));
                    continue;
                } catch (\GuzzleHttp\Exception\RequestException $error) {
                    $flow->throw($this->client->unreachable($error->getMessage(), true, $error));
                    continue;
                }
                $flow->send($reply);
            }
        } catch (ComityException $why) {
            throw new NotSent($request, $why);
        }

        $permit = new Permit($this->client, $flow->getReturn());
        try {
            $response = yield $handler($request, $this->watched($options, $permit));
            $permit->response($response);
        } catch (\Throwable $error) {
            $permit->done($error);
            throw $error;
        }
        $permit->done();
        return $response;
    }

    /** A call to the service, by the same handler: so it waits beside the other requests. */
    private function ask(callable $handler, Call $call, array $options): PromiseInterface
    {
        $body = json_encode($call->body, JSON_THROW_ON_ERROR);
        $request = new Request('POST', $this->client->server . $call->path, $this->client->headers($call), $body);
        $options += [
            'timeout' => ($this->client->timeoutMs + $call->maxWaitMs) / 1000,
            'delay' => $call->delayMs ?: null,
            'proxy' => '',
        ];
        return $handler($request, array_filter($options, fn ($value) => $value !== null))->then(
            fn (ResponseInterface $reply) => new Reply(
                $reply->getStatusCode(),
                $reply->getHeaderLine('Retry-After') ?: null,
                (string) $reply->getBody(),
            ),
        );
    }

    /**
     * Learns when the request was written at the latest, which is when its response began, and renews the lease while it
     * runs. (`pretransfer_time` is before the request is written: a busy process may write it much later.)
     *
     * @param array<string, mixed> $options
     * @return array<string, mixed>
     */
    private function watched(array $options, Permit $permit): array
    {
        $progress = $options['progress'] ?? null;
        $options['progress'] = function (...$numbers) use ($permit, $progress): mixed {
            $permit->keep();
            return $progress === null ? null : $progress(...$numbers);
        };
        $onStats = $options['on_stats'] ?? null;
        $options['on_stats'] = function (TransferStats $stats) use ($permit, $onStats): void {
            $times = $stats->getHandlerStats();
            if ($stats->hasResponse() && isset($times['total_time'], $times['starttransfer_time'])) {
                $permit->sent((int) floor(($times['total_time'] - $times['starttransfer_time']) * 1000));
            }
            if ($onStats !== null) {
                $onStats($stats);
            }
        };
        return $options;
    }

    /** Runs a generator of promises. If the promise is cancelled, so is whatever it waits for. */
    private function promise(\Generator $steps): PromiseInterface
    {
        $current = null;
        $result = new Promise(
            function () use (&$current): void {
                while ($current !== null) {
                    $current->wait(false);
                    // The handlers of a promise that was settled from the start.
                    Utils::queue()->run();
                }
            },
            function () use (&$current): void {
                $current?->cancel();
            },
        );
        $next = function (callable $resume) use (&$next, &$current, $steps, $result): void {
            $current = null;
            try {
                $resume();
                if ($steps->valid()) {
                    // What is cancelled or waited for is the step itself: the handlers of a cancelled promise aren't called.
                    $current = Create::promiseFor($steps->current());
                    $current->then(
                        fn ($value) => $next(fn () => $steps->send($value)),
                        fn ($reason) => $next(fn () => $steps->throw(Create::exceptionFor($reason))),
                    );
                    return;
                }
                $settle = fn () => $result->resolve($steps->getReturn());
            } catch (\Throwable $error) {
                $settle = fn () => $result->reject($error);
            }
            // It may have been cancelled in the meantime.
            if ($result->getState() === PromiseInterface::PENDING) {
                $settle();
            }
        };
        $next(fn () => null);
        return $result;
    }
}
