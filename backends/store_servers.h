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
    const char *role; /* static: "master", "replica", "entry" (configured, not in the slot map) */
    /* False: its breaker is open, or it has no connection although commands need one. */
    bool up;
    uint32_t n_slots; /* hash slots of which it is the master */
    uint32_t n_connections;
    uint64_t latency_us; /* moving average over round trips; 0: no reply yet */
    uint64_t n_commands;
    uint64_t n_keys; /* keys in its replies to lookups, found or absent */
    uint64_t n_keys_found;
    uint64_t n_bytes_sent;
    uint64_t n_bytes_received;
    uint64_t n_errors; /* error replies */
    uint64_t n_timeouts;
    uint64_t n_broken;  /* connections that broke or could not be opened */
    uint64_t n_refused; /* commands not sent because the server was down */
    char error[320];    /* its last failure, also if it is up; "": it has never failed */
};

/* Numbers for the whole store, with all its servers and shards. */
struct hps_store_shared_stats {
    const char *kind; /* static: "standalone", "cluster", "unknown" */
    uint32_t n_slots; /* all hash slots, with or without a server */
    /* Hash slots with a server that is up; lookups of other slots find nothing. */
    uint32_t n_slots_up;
    uint64_t n_redirects;   /* commands redirected to another server */
    uint64_t n_rows_found;  /* rows that lookups found and returned */
    uint64_t n_rows_absent; /* rows that lookups did not find */
    /* Rows found, but not returned: their shard was at earlier positions than the version. */
    uint64_t n_rows_behind;
    /* Rows found, but not returned: their shard was at later positions than the version, and the
     * lookup had exact_position. */
    uint64_t n_rows_ahead;
    uint64_t n_rows_inserted;
    /* Rows that insert refused. Their guard rejected them, or their shard was not at the version's
     * log positions. */
    uint64_t n_rows_refused;
    uint64_t n_rows_evicted; /* by this daemon */
    /* Sums over all batches of updates (hps_log_report.n_gap and n_failed). */
    uint64_t n_shards_gap;
    uint64_t n_shards_failed;
    uint64_t n_shards_reset; /* shards emptied because they were behind or missing */
    char error[320]; /* why the last request of the map of slots failed; "": it did not fail */
};

struct hps_store_servers_ops {
    /* Describe the first `capacity` servers. Returns the number of servers written. */
    uint32_t (*list)(struct hps_store *store, struct hps_store_server *out_servers,
                     uint32_t capacity);
    /* Set *out_stats, all counts since the store was opened. */
    void (*stats)(struct hps_store *store, struct hps_store_shared_stats *out_stats);
    /* Read the TLS files again; new connections use them. After a failure the old certificates stay
     * in use. */
    hps_status (*renew_tls)(struct hps_store *store, struct hps_error *err) HPS_MUST_CHECK;
};

#endif
