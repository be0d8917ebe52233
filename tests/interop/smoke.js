// SPDX-License-Identifier: Apache-2.0
//
// Node's @grpc/grpc-js against grpc.testing.TestService: one line per case, exit 1 if any failed.
// usage: smoke.js ADDRESS PROTO-ROOT   (NODE_PATH names the packages)
'use strict';
const assert = require('assert');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [address, root] = process.argv.slice(2);
const definition = loader.loadSync('grpc/testing/test.proto', {includeDirs: [root], keepCase: true});
const {TestService} = grpc.loadPackageDefinition(definition).grpc.testing;
const client = new TestService(address, grpc.credentials.createInsecure());

const unary = (method, request, metadata = new grpc.Metadata(), options = {}) =>
  new Promise((resolve, reject) => {
    const seen = {};
    const call = client[method](request, metadata, options, (error, reply) => {
      seen.reply = reply;
      if (error) reject(error);
    });
    call.on('metadata', (initial) => { seen.initial = initial; });
    call.on('status', (status) => { seen.trailing = status.metadata; resolve(seen); });
  });

const collect = (call) => new Promise((resolve, reject) => {
  const sizes = [];
  call.on('data', (reply) => sizes.push(reply.payload.body.length));
  call.on('error', reject);
  call.on('end', () => resolve(sizes));
});

const codeOf = (promise) => promise.then(() => grpc.status.OK, (error) => error.code);

const cases = {
  async js_empty_unary() { await unary('EmptyCall', {}); },
  async js_large_unary() {
    const {reply} = await unary('UnaryCall',
      {response_size: 314159, payload: {body: Buffer.alloc(271828)}});
    assert.strictEqual(reply.payload.body.length, 314159);
  },
  async js_client_streaming() {
    const size = await new Promise((resolve, reject) => {
      const call = client.StreamingInputCall((error, reply) =>
        error ? reject(error) : resolve(reply.aggregated_payload_size));
      for (const n of [27182, 8, 1828, 45904]) call.write({payload: {body: Buffer.alloc(n)}});
      call.end();
    });
    assert.strictEqual(size, 74922);
  },
  async js_server_streaming() {
    const sizes = [31415, 9, 2653, 58979];
    const call = client.StreamingOutputCall(
      {response_parameters: sizes.map((size) => ({size}))});
    assert.deepStrictEqual(await collect(call), sizes);
  },
  async js_duplex() {
    const sizes = [31415, 9, 2653, 58979];
    const call = client.FullDuplexCall();
    for (const size of sizes) call.write({response_parameters: [{size}]});
    call.end();
    assert.deepStrictEqual(await collect(call), sizes);
  },
  async js_metadata() {
    const metadata = new grpc.Metadata();
    const bytes = Buffer.from([0xab, 0xab, 0x00, 0xff]);
    metadata.set('x-grpc-test-echo-initial', 'value');
    metadata.set('x-grpc-test-echo-trailing-bin', bytes);
    const {initial, trailing} = await unary('UnaryCall', {response_size: 1}, metadata);
    assert.deepStrictEqual(initial.get('x-grpc-test-echo-initial'), ['value']);
    assert.deepStrictEqual(trailing.get('x-grpc-test-echo-trailing-bin'), [bytes]);
  },
  async js_status_message() {
    const message = '\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \u{1f608}\t\n';
    const error = await unary('UnaryCall', {response_status: {code: 2, message}})
      .then(() => assert.fail('no error'), (e) => e);
    assert.strictEqual(error.code, grpc.status.UNKNOWN);
    assert.strictEqual(error.details, message);
  },
  async js_cancel() {
    const call = client.FullDuplexCall();
    call.write({response_parameters: [{size: 100}]});
    const code = await new Promise((resolve) => {
      call.on('data', () => call.cancel());
      call.on('error', (error) => resolve(error.code));
    });
    assert.strictEqual(code, grpc.status.CANCELLED);
  },
  async js_deadline() {
    const call = client.StreamingOutputCall({response_parameters: [{size: 1, interval_us: 60000000}]},
      {deadline: Date.now() + 50});
    assert.strictEqual(await codeOf(collect(call)), grpc.status.DEADLINE_EXCEEDED);
  },
  async js_unimplemented() {
    assert.strictEqual(await codeOf(unary('UnimplementedCall', {})), grpc.status.UNIMPLEMENTED);
  },
};

(async () => {
  let failed = 0;
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run();
      console.log('PASS', name);
    } catch (error) {
      failed += 1;
      console.log('FAIL', name, String(error).slice(0, 300));
    }
  }
  client.close();
  process.exit(failed ? 1 : 0);
})();
