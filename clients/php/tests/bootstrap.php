<?php

// Guzzle and the PSR interfaces as Debian packages them, or as Composer installs them.
declare(strict_types=1);

if (is_file(__DIR__ . '/../vendor/autoload.php')) {
    require __DIR__ . '/../vendor/autoload.php';
} else {
    require_once 'Psr/Http/Client/autoload.php';
    require_once 'GuzzleHttp/autoload.php';
    spl_autoload_register(function (string $class): void {
        if (str_starts_with($class, 'Comity\\') && is_file($file = __DIR__ . '/../src/' . substr($class, 7) . '.php')) {
            require $file;
        }
    });
}
require_once __DIR__ . '/World.php';
