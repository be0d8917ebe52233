/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted store for tests: rows in sorted arrays, and failures, gates and latency (of the fake
 * clock) for each operation. Any thread.
 */
#ifndef HPS_TESTS_LIB_FAKE_STORE_H
#define HPS_TESTS_LIB_FAKE_STORE_H

#include "backends/store.h"

enum hps_fake_op {
    HPS_FAKE_SPACE_OPEN,
    HPS_FAKE_SPACE_DROP,
    HPS_FAKE_GET,
    HPS_FAKE_GET_MANY,
    HPS_FAKE_INSERT,
    HPS_FAKE_PUT,
    HPS_FAKE_ERASE,
    HPS_FAKE_APPLY,
    HPS_FAKE_LOAD_BEGIN,
    HPS_FAKE_LOAD_ADD,
    HPS_FAKE_LOAD_COMMIT,
    HPS_FAKE_SCAN,
    HPS_FAKE_RECORD_PUT,
    HPS_FAKE_RECORD_DELETE,
    HPS_FAKE_RECORD_SCAN,
    HPS_FAKE_OP_COUNT
};

struct hps_fake_options {
    const char *name; /* NULL: "fake" */
    enum hps_tier_kind tier;
    uint32_t caps;      /* DURABLE: closed spaces keep rows; INSERTS, SCANS: always set */
    uint64_t bytes_max; /* of rows, 0 = unlimited */
};

/* NULL: out of memory. Close with ops. */
struct hps_store *hps_fake_store_new(const struct hps_fake_options *options);

/* Let `skip` calls of `op` pass, then return `status` from the next n_times (UINT32_MAX: all). An
 * apply that fails changes nothing. A get of many keys, insert, put or erase processes its first
 * n_keys keys; with the status OK, this simulates a partial failure. */
void hps_fake_fail(struct hps_store *store, enum hps_fake_op op, hps_status status, uint32_t skip,
                   uint32_t n_times, uint32_t n_keys);
/* Calls of `op` wait while its gate is shut. */
void hps_fake_gate_shut(struct hps_store *store, enum hps_fake_op op);
void hps_fake_gate_open(struct hps_store *store, enum hps_fake_op op);
/* Block until n_waiting calls wait at the gate of `op`. */
void hps_fake_gate_wait(struct hps_store *store, enum hps_fake_op op, uint32_t n_waiting);
/* Each call of `op` advances the fake clock by latency_us. */
void hps_fake_latency(struct hps_store *store, enum hps_fake_op op, uint64_t latency_us);
uint64_t hps_fake_calls(struct hps_store *store, enum hps_fake_op op);
uint64_t hps_fake_keys(struct hps_store *store, enum hps_fake_op op); /* sum over all calls */
/* SHARED stores: whether the rows are from later log positions than the version's. */
void hps_fake_later(struct hps_store *store, bool later);
/* The result of bytes_free; initially UINT64_MAX. */
void hps_fake_bytes_free(struct hps_store *store, uint64_t bytes);

#endif
