/* SPDX-License-Identifier: Apache-2.0
 *
 * A store for tests that does as it is told: rows in sorted arrays, and a script of failures, gates
 * and latency (of the fake clock) per operation. Any thread.
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
    uint32_t caps;      /* DURABLE: closed spaces keep their rows; it INSERTS and SCANS anyhow */
    uint64_t bytes_max; /* of rows, 0 = unbounded */
};

/* NULL: no memory. Close by ops. */
struct hps_store *hps_fake_store_new(const struct hps_fake_options *options);

/* Let `skip` calls of `op` pass, then fail the next n_times (UINT32_MAX: for ever) with `status`.
 * A get (of many), insert, put or erase that fails has done its first n_keys keys, an apply
 * nothing. OK: only a part of the store fails. */
void hps_fake_fail(struct hps_store *store, enum hps_fake_op op, hps_status status, uint32_t skip,
                   uint32_t n_times, uint32_t n_keys);
/* Calls of `op` wait while its gate is shut. */
void hps_fake_gate_shut(struct hps_store *store, enum hps_fake_op op);
void hps_fake_gate_open(struct hps_store *store, enum hps_fake_op op);
/* Block until n_waiting calls wait at the gate. */
void hps_fake_gate_wait(struct hps_store *store, enum hps_fake_op op, uint32_t n_waiting);
/* Each call of `op` moves the fake clock by this much. */
void hps_fake_latency(struct hps_store *store, enum hps_fake_op op, uint64_t latency_us);
uint64_t hps_fake_calls(struct hps_store *store, enum hps_fake_op op);
uint64_t hps_fake_keys(struct hps_store *store, enum hps_fake_op op); /* keys passed in, in sum */
/* Of a SHARED store: its rows are of later positions than the version's. */
void hps_fake_later(struct hps_store *store, bool later);
/* What bytes_free answers; UINT64_MAX at first. */
void hps_fake_bytes_free(struct hps_store *store, uint64_t bytes);

#endif
