/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): the servers of a store, for metrics, status and
 * certificates. list and stats report what earlier calls found and access no server.
 */
#ifndef HPS_BACKENDS_STORE_SERVERS_H
#define HPS_BACKENDS_STORE_SERVERS_H

#include "backends/store.h"

/* One server. Counts are since the store was opened. */
struct hps_store_server {
    char address[280];
    const char *role; /* static: "master", "replica", "entry" (configured, role not known yet) */
    bool up;          /* false: its breaker is open, or it was never reached */
    uint32_t n_slots; /* hash slots that it serves */
    uint32_t n_connections;
    uint64_t latency_us; /* of a round trip, moving average; 0: no reply yet */
    uint64_t n_commands;
    uint64_t n_keys; /* that lookups requested */
    uint64_t n_keys_found;
    uint64_t n_bytes_sent;
    uint64_t n_bytes_received;
    uint64_t n_errors; /* error replies */
    uint64_t n_timeouts;
    uint64_t n_broken;  /* connections that broke or could not be opened */
    uint64_t n_refused; /* commands not sent because the server is down */
    char error[320];    /* why it is down, or its last failure; "": none */
};

/* Sums over all servers, and counts of rows and shards. */
struct hps_store_shared_stats {
    const char *kind; /* static: "standalone", "cluster", "unknown" */
    uint32_t n_slots; /* hash slots that have a server */
    /* Hash slots with a server that is up; lookups of other slots find nothing. */
    uint32_t n_slots_up;
    uint64_t n_redirects; /* commands redirected to another server */
    uint64_t n_rows_found;
    uint64_t n_rows_absent;
    uint64_t n_rows_behind; /* found at earlier positions than the version, and left out */
    /* Found at later positions than the version, and left out by exact_position. */
    uint64_t n_rows_ahead;
    uint64_t n_rows_inserted;
    /* rows refused by insert: stale, or the shard was not at the version's positions */
    uint64_t n_rows_refused;
    uint64_t n_rows_evicted;
    uint64_t n_shards_gap;    /* shards found behind the start of a batch of updates */
    uint64_t n_shards_failed; /* shards that a batch did not reach */
    uint64_t n_shards_reset;
    char error[320]; /* why the map of slots could not be refreshed; "": no failure */
};

struct hps_store_servers_ops {
    /* Describe the first `capacity` servers. Returns how many were written. */
    uint32_t (*list)(struct hps_store *store, struct hps_store_server *out_servers,
                     uint32_t capacity);
    void (*stats)(struct hps_store *store, struct hps_store_shared_stats *out_stats);
    /* Read the certificates for the servers again. After a failure the old ones stay in use. */
    hps_status (*renew_tls)(struct hps_store *store, struct hps_error *err) HPS_MUST_CHECK;
};

#endif
