/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): the servers that a store is made of, for metrics,
 * status and certificates. Nothing here asks a server: what is shown, earlier calls have found out.
 */
#ifndef HPS_BACKENDS_STORE_SERVERS_H
#define HPS_BACKENDS_STORE_SERVERS_H

#include "backends/store.h"

/* One of the servers that a store is made of. Counts are since the store was opened. */
struct hps_store_server {
    char address[280];
    const char *role; /* static: "master", "replica", "entry" (none of both, as yet) */
    bool up;          /* false: left alone, or never reached */
    uint32_t n_slots; /* shares of the keys that it has */
    uint32_t n_connections;
    uint64_t latency_us; /* of a round trip, moving average; 0: none yet */
    uint64_t n_commands;
    uint64_t n_keys; /* that look-ups asked it for */
    uint64_t n_keys_found;
    uint64_t n_bytes_sent;
    uint64_t n_bytes_received;
    uint64_t n_errors; /* answers that are errors */
    uint64_t n_timeouts;
    uint64_t n_broken;  /* connections that broke or could not be made */
    uint64_t n_refused; /* commands not sent, as it was left alone */
    char error[320];    /* why it is down, or the last failure; "" if none */
};

/* The same of all of them together, and what became of rows and shards. */
struct hps_store_shared_stats {
    const char *kind;     /* static: "standalone", "cluster", "unknown" */
    uint32_t n_slots;     /* of all keys */
    uint32_t n_slots_up;  /* whose server is there: look-ups of the rest find nothing */
    uint64_t n_redirects; /* commands sent on to another server */
    uint64_t n_rows_found;
    uint64_t n_rows_absent;
    uint64_t n_rows_behind; /* there, but of earlier positions than the version's */
    uint64_t n_rows_ahead;  /* of later ones, which exact_position leaves out */
    uint64_t n_rows_inserted;
    uint64_t n_rows_refused; /* insertions that were too late, or too early */
    uint64_t n_rows_evicted;
    uint64_t n_shards_gap;    /* shards that a batch of updates found behind it */
    uint64_t n_shards_failed; /* that a batch could not reach */
    uint64_t n_shards_reset;
    char error[320]; /* why not all is known of the servers: who has which keys; "": it is */
};

struct hps_store_servers_ops {
    /* What is known just now of the first `capacity` servers; returns their number. */
    uint32_t (*list)(struct hps_store *store, struct hps_store_server *out_servers,
                     uint32_t capacity);
    void (*stats)(struct hps_store *store, struct hps_store_shared_stats *out_stats);
    /* Read the certificates for its servers again. If that fails, those that there are stay. */
    hps_status (*renew_tls)(struct hps_store *store, struct hps_error *err) HPS_MUST_CHECK;
};

#endif
