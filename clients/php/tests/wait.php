<?php

// Waits for a permit in a process of its own: php wait.php SERVER DOMAIN
declare(strict_types=1);

require __DIR__ . '/bootstrap.php';

[, $server, $domain] = $argv;
echo (new Comity\Client($server))->permit($domain)->done()->outcome;
