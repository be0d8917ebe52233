// SPDX-License-Identifier: Apache-2.0
//
// Node's @grpc/grpc-js, with stubs made at run time from our protos, as a client of KServe v2: one line per case, exit 1
// if any failed.
// usage: kserve.js PROTO-ROOT ADDRESS DIRECTORY   (kserve.py says what is in it; NODE_PATH names the packages)
'use strict';
const assert = require('assert');
const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [root, address, directory] = process.argv.slice(2);
const definition = loader.loadSync('inference/grpc_service.proto', {includeDirs: [root], keepCase: true, longs: String});
const {GRPCInferenceService} = grpc.loadPackageDefinition(definition).inference;
const client = new GRPCInferenceService(address, grpc.credentials.createInsecure());
const [keys, counts, rows] = ['keys', 'counts', 'rows'].map((name) => fs.readFileSync(`${directory}/${name}`));
const deadline = () => ({deadline: Date.now() + 60000});

const call = (method, request) => new Promise((resolve, reject) =>
  client[method](request, deadline(), (error, reply) => error ? reject(error) : resolve(reply)));

const inputs = (more = [{}, {}]) => [
  {name: 'KEYS', datatype: 'INT64', shape: [keys.length / 8], ...more[0]},
  {name: 'NUMKEYS', datatype: 'INT32', shape: [1, counts.length / 4], ...more[1]},
];
const request = () => ({model_name: 'm', inputs: inputs(), raw_input_contents: [keys, counts], id: 'js'});

const check = (reply) => {
  assert.strictEqual(reply.model_name, 'm');
  assert.deepStrictEqual(reply.outputs.map((one) => [one.name, one.datatype, one.shape]),
    [['OUTPUT0', 'FP32', [String(rows.length / 4)]]]);
  assert.ok(reply.raw_output_contents[0].equals(rows), 'other rows than those of the formula');
};

const cases = {
  async js_kserve_ready() {
    assert.ok((await call('ServerReady', {})).ready);
    assert.ok((await call('ModelReady', {name: 'm'})).ready);
  },
  async js_kserve_metadata() {
    const about = await call('ModelMetadata', {name: 'm'});
    assert.deepStrictEqual([about.name, about.versions, about.platform], ['m', ['1'], 'hps']);
    assert.deepStrictEqual(about.inputs.map((one) => [one.name, one.datatype]), [['KEYS', 'INT64'], ['NUMKEYS', 'INT32']]);
  },
  async js_kserve_infer_raw() {
    const reply = await call('ModelInfer', request());
    check(reply);
    assert.strictEqual(reply.id, 'js');
  },
  async js_kserve_infer_typed() {
    const int64 = [], int32 = [];
    for (let at = 0; at < keys.length; at += 8) int64.push(String(keys.readBigInt64LE(at)));
    for (let at = 0; at < counts.length; at += 4) int32.push(counts.readInt32LE(at));
    check(await call('ModelInfer', {model_name: 'm', inputs: inputs(
      [{contents: {int64_contents: int64}}, {contents: {int_contents: int32}}])}));
  },
  async js_kserve_stream() {
    const stream = client.ModelStreamInfer(deadline());
    let n = 0;
    const ended = new Promise((resolve, reject) => {
      stream.on('data', (reply) => { check(reply.infer_response); n += 1; });
      stream.on('error', reject);
      stream.on('end', resolve);
    });
    for (let i = 0; i < 5; i++) stream.write(request());
    stream.end();
    await ended;
    assert.strictEqual(n, 5);
  },
  async js_kserve_refused() {
    const error = await call('ModelInfer', {...request(), model_name: 'nope'}).then(() => assert.fail('no error'), (e) => e);
    assert.strictEqual(error.code, grpc.status.NOT_FOUND);
    assert.match(error.details, /Request for unknown model: 'nope' is not found/);
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
