// An SQS-speaking server on loopback, for the tests of the sqs doorbell.
//
//	PORT=4566 node serve.mjs
//
// PORT=0 (or none) takes any free port. The one line on stdout, {"url":"http://127.0.0.1:4566"},
// comes once requests are accepted. The server ends on SIGTERM or SIGINT, and when its
// standard input closes and WATCH_STDIN=1 is set, so that it never outlives a test that was killed.
// Everything is kept in memory: ending it loses all queues and messages.
import { buildApp } from "fauxqs";

const port = Number(process.env.PORT || 0);
if (!Number.isInteger(port) || port < 0 || port > 65535) {
  console.error(`serve.mjs: PORT must be a number from 0 to 65535, not ${JSON.stringify(process.env.PORT)}`);
  process.exit(2);
}

const app = buildApp({ logger: false });
// The package's own command listens on every address; a test server must not.
const url = await app.listen({ host: "127.0.0.1", port });
console.log(JSON.stringify({ url }));

const stop = () => process.exit(0);
process.on("SIGTERM", stop);
process.on("SIGINT", stop);
if (process.env.WATCH_STDIN === "1") {
  process.stdin.on("end", stop).resume();
}
