/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of Redis, for one server or a cluster alike: slots, nodes, connections and their
 * failures. A server on its own is a cluster of one node that has all slots; which of the two it
 * is, the client finds out from the server.
 *
 * Calls come from worker threads, which block in them, each on the sockets that it has checked out.
 * One thread of the cluster's own connects, probes nodes that are down and asks for the map of
 * slots, so that no look-up ever waits for a name or a handshake longer than for a reply.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CLIENT_H
#define HPS_BACKENDS_REDIS_CLIENT_CLIENT_H

#include "backends/redis/client/codec.h"
#include "base/status.h"

#define HPS_REDIS_SLOTS     16384
#define HPS_REDIS_NODES_MAX 1024 /* at a time */

/* The slot of a key: CRC16 of what stands in its first {}, if that is not empty, else of all. */
uint16_t hps_redis_slot(const void *key, size_t size);

struct hps_redis_cluster;
struct hps_tls_names;

struct hps_redis_options {
    const char *addresses; /* "host:port", "unix:PATH", several split by ',' or ';'; port 6379 */
    const char *user;      /* NULL, "" or "default": none is named */
    const char *password;  /* NULL or "": no AUTH */
    bool tls;
    const char *ca_file;                   /* file or directory; NULL: the system's */
    const char *cert_file;                 /* NULL: none is shown */
    const char *key_file;                  /* NULL: in cert_file */
    const struct hps_tls_names *tls_names; /* for errors, lives as long; NULL: plain words */
    const char *server_name; /* asked for (SNI) and expected; NULL: the host connected to */
    bool replica_reads;      /* HPS_REDIS_READ may go to a Redis replica */
    uint32_t connections_per_node;
    uint32_t failures_max; /* in a row, after which a node is left alone */
    uint64_t connect_timeout_us;
    uint64_t command_timeout_us;
    uint64_t pause_us_first; /* until a node that was left alone is probed */
    uint64_t pause_us_max;   /* doubling up to this */
    /* How long no name is looked up again; longer than pause_us_max, so that what came too late
     * serves the next probe. */
    uint64_t name_kept_us;
    size_t reply_bytes_max; /* of one value, or one small reply */
};

#define HPS_REDIS_OPTIONS_DEFAULT                                           \
    ((struct hps_redis_options){.addresses = "127.0.0.1:7000",              \
                                .connections_per_node = 5,                  \
                                .failures_max = 5,                          \
                                .connect_timeout_us = UINT64_C(500) * 1000, \
                                .command_timeout_us = UINT64_C(20) * 1000,  \
                                .pause_us_first = UINT64_C(100) * 1000,     \
                                .pause_us_max = UINT64_C(5) * 1000 * 1000,  \
                                .name_kept_us = UINT64_C(10) * 1000 * 1000, \
                                .reply_bytes_max = (size_t)64 * 1024 * 1024})

/* INVALID: an address that hps_redis_cluster_open would refuse, named in `err`. Any thread. */
hps_status hps_redis_addresses_check(const char *addresses, struct hps_error *err) HPS_MUST_CHECK;

/* INVALID, IO: files for TLS that hps_redis_cluster_open could not use, named in `err`; OK without
 * TLS. Any thread. */
hps_status hps_redis_tls_check(const struct hps_redis_options *options, struct hps_error *err)
    HPS_MUST_CHECK;

/* Reads certificates and starts the thread; does not wait for any server, so that one that is away
 * is no error. INVALID: an option, named in `err`. */
hps_status hps_redis_cluster_open(const struct hps_redis_options *options,
                                  struct hps_redis_cluster **out_cluster, struct hps_error *err)
    HPS_MUST_CHECK;
/* Read the certificates again: connections that are made from now on use them. INVALID, IO: naming
 * the file; those that were read before stay. OK without TLS. Any thread. */
hps_status hps_redis_cluster_renew_tls(struct hps_redis_cluster *cluster, struct hps_error *err)
    HPS_MUST_CHECK;
/* No call may be under way. NULL is legal. */
void hps_redis_cluster_close(struct hps_redis_cluster *cluster);

/* ---- the one call ---------------------------------------------------------------------------- */

enum {
    HPS_REDIS_READ = 1, /* changes nothing: replicas may answer, where they are wanted */
    /* Not to be sent again when a connection breaks and it may have been carried out. Others are:
     * carrying them out twice must make no difference. */
    HPS_REDIS_ONCE = 2,
    /* A node that sends nothing for command_timeout_us counts as failed, whatever the deadline. A
     * long answer may take longer, as long as bytes of it come. */
    HPS_REDIS_QUICK = 4,
};

/* One command of one slot. Zero it, then fill in the first part. */
struct hps_redis_command {
    uint16_t slot; /* of its keys; for a command without keys, one of the node that is meant */
    uint8_t flags;
    const void *bytes; /* as codec.h puts them; borrowed for the call */
    size_t size;
    /* Out: reply.status is OK or of an error of the server (codec.h), or
     *   DEADLINE     no answer in time
     *   UNAVAILABLE  the node is down or left alone, the connection broke, or nobody has the slot
     *   IO           an answer that is none
     *   EXHAUSTED    an answer larger than allowed
     * with the reason in reply.error. MOVED, ASK and TRYAGAIN are never seen. */
    struct hps_redis_reply reply;
    bool maybe_done; /* out, not OK: it was sent, so the server may have carried it out all the same
                      */

    /* The cluster's own. */
    struct hps_redis_command *next;
    int32_t target;
    uint16_t n_redirects;
    uint8_t state;
};

/* Run the commands: those of one node go over one connection, in their order and pipelined, those
 * of different nodes at the same time; so all of it costs one round trip. A command that is sent to
 * another node than was thought (or again) may come after later ones.
 *
 * unit    deadline_us: hps_clock_us; 0: none, but all of them are HPS_REDIS_QUICK
 * thread  any; blocks until all have been answered or given up
 * error   that of the first command that is not OK; every command has its own in reply.status */
hps_status hps_redis_cluster_run(struct hps_redis_cluster *cluster,
                                 struct hps_redis_command *commands, uint32_t n,
                                 uint64_t deadline_us) HPS_MUST_CHECK;

/* ---- what is known of it --------------------------------------------------------------------- */

enum hps_redis_kind { HPS_REDIS_UNKNOWN, HPS_REDIS_STANDALONE, HPS_REDIS_CLUSTERED };
enum hps_redis_role { HPS_REDIS_ENTRY, HPS_REDIS_MASTER, HPS_REDIS_REPLICA };

/* Wait until the map of slots is known and every master of it is connected (for tests and start).
 * False: not by the deadline. */
bool hps_redis_cluster_wait(struct hps_redis_cluster *cluster, uint64_t deadline_us);
/* One slot of each master, for commands without keys: *out_n of them, at most `capacity`. */
void hps_redis_cluster_masters(struct hps_redis_cluster *cluster, uint16_t *out_slots,
                               uint32_t capacity, uint32_t *out_n);
/* For people: "ADDRESS: what it failed with" of a node that is down, or does not send the map of
 * slots; "" if none is. */
void hps_redis_cluster_why(struct hps_redis_cluster *cluster, char *out_text, size_t size);

struct hps_redis_node_stats {
    char address[280]; /* as hps_addr_print says it */
    enum hps_redis_role role;
    bool up;          /* commands go there, or would; false: left alone, or never reached */
    uint32_t n_slots; /* 0 for replicas and entries */
    uint32_t n_connections;
    uint64_t latency_us; /* to the first reply of a round trip, moving average over about 16 */
    uint64_t n_commands;
    uint64_t n_rows; /* that were asked for (reply.rows), and answered for or not there */
    uint64_t n_rows_found;
    uint64_t n_errors; /* of the server, but for NOSCRIPT, which asks for a script */
    uint64_t n_timeouts;
    uint64_t n_broken;  /* connections that broke or could not be made */
    uint64_t n_refused; /* commands not sent because the node was left alone */
    uint64_t n_bytes_sent;
    uint64_t n_bytes_received;
    char error[HPS_REDIS_ERROR_MAX]; /* why it is down, or the last failure; "" if none */
};

struct hps_redis_stats {
    enum hps_redis_kind kind;
    uint32_t n_nodes;    /* as hps_redis_cluster_nodes lists them */
    uint32_t n_slots;    /* that somebody has */
    uint32_t n_slots_up; /* whose master is not left alone */
    uint64_t n_refreshes;
    uint64_t n_moved;
    uint64_t n_ask;
    uint64_t n_tryagain;
    uint64_t n_down; /* CLUSTERDOWN and LOADING */
    /* Who answers, and yet does not say who has which slots, and why: the map is the one that was
     * last told, if any. "": none since then. */
    char error[HPS_REDIS_ERROR_MAX];
};

void hps_redis_cluster_stats(struct hps_redis_cluster *cluster, struct hps_redis_stats *out_stats);
/* The first `capacity` nodes that are masters, replicas, or entries that are neither. Returns their
 * number. */
uint32_t hps_redis_cluster_nodes(struct hps_redis_cluster *cluster,
                                 struct hps_redis_node_stats *out_nodes, uint32_t capacity);

#endif
