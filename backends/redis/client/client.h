/* SPDX-License-Identifier: Apache-2.0
 *
 * A client for one Redis server or a cluster: slots, nodes, connections and their failures. A
 * single server is treated as a cluster of one node with all slots. The client queries the servers
 * to find out which of the two they are.
 *
 * Worker threads call the client and block, each on the connections that it has checked out. One
 * thread of the client opens connections, probes nodes that are down and requests the map of slots.
 * So a slow connection attempt never blocks a worker longer than a slow reply would.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CLIENT_H
#define HPS_BACKENDS_REDIS_CLIENT_CLIENT_H

#include "backends/redis/client/codec.h"
#include "base/status.h"

#define HPS_REDIS_SLOTS     16384
#define HPS_REDIS_NODES_MAX 1024 /* maximum number of nodes at one time */

/* The slot of a key: CRC16 of the text in its first {}, or of the whole key if that text is missing
 * or empty. */
uint16_t hps_redis_slot(const void *key, size_t size);

struct hps_redis_cluster;
struct hps_tls_names;

struct hps_redis_options {
    /* List of "host:port" or "unix:PATH", separated by ',' or ';'. The default port is 6379. */
    const char *addresses;
    const char *user;     /* NULL, "" or "default": AUTH without a user name */
    const char *password; /* NULL or "": no AUTH */
    bool tls;
    const char *ca_file;   /* file or directory; NULL: the system's CA certificates */
    const char *cert_file; /* NULL: no client certificate */
    const char *key_file;  /* NULL: the key is in cert_file */
    /* Names of the TLS options for error texts; must outlive the client. NULL: generic names. */
    const struct hps_tls_names *tls_names;
    const char *server_name; /* for SNI and verification; NULL: the host name of each address */
    bool replica_reads;      /* commands with HPS_REDIS_READ may go to replicas */
    uint32_t connections_per_node;
    uint32_t failures_max; /* consecutive failures after which a node is down */
    uint64_t connect_timeout_us;
    uint64_t command_timeout_us;
    uint64_t pause_us_first; /* from the failure of a node to its first probe */
    uint64_t pause_us_max;   /* limit of the pause, which doubles after each failed probe */
    /* How long a resolved host name is reused. Must be longer than pause_us_max: a name that is
     * resolved too late for one probe is then still valid for the next. */
    uint64_t name_kept_us;
    size_t reply_bytes_max; /* limit of undecoded bytes of a reply, and so of one value */
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

/* Check a list of addresses. INVALID: hps_redis_cluster_open would refuse the address named in
 * `err`. Any thread. */
hps_status hps_redis_addresses_check(const char *addresses, struct hps_error *err) HPS_MUST_CHECK;

/* Check the TLS files. INVALID, IO: hps_redis_cluster_open could not use the file named in `err`.
 * OK if options->tls is false. Any thread. */
hps_status hps_redis_tls_check(const struct hps_redis_options *options, struct hps_error *err)
    HPS_MUST_CHECK;

/* Open a client: read certificates and start its thread. Does not wait for servers; an unreachable
 * server is no error. INVALID: an option is invalid; `err` names it. */
hps_status hps_redis_cluster_open(const struct hps_redis_options *options,
                                  struct hps_redis_cluster **out_cluster, struct hps_error *err)
    HPS_MUST_CHECK;
/* Read the certificates again; new connections use them. INVALID, IO: a file is unusable; `err`
 * names it, and the old certificates stay in use. OK if the client does not use TLS. Any thread. */
hps_status hps_redis_cluster_renew_tls(struct hps_redis_cluster *cluster, struct hps_error *err)
    HPS_MUST_CHECK;
/* Stop the thread and free the client. No call may be in flight. NULL: no effect. */
void hps_redis_cluster_close(struct hps_redis_cluster *cluster);

/* ---- commands -------------------------------------------------------------------------------- */

enum {
    HPS_REDIS_READ = 1, /* read-only command; a replica may execute it if replica_reads is set */
    /* If the connection breaks after the command may have been executed, do not send it again. A
     * command without this flag must have the same effect when executed twice. */
    HPS_REDIS_ONCE = 2,
    /* The node counts as failed if it sends nothing for command_timeout_us, even if the deadline of
     * the call is later. A long reply may take more time while its bytes keep arriving. */
    HPS_REDIS_QUICK = 4,
};

/* One command for one slot. The caller zeroes the struct and sets the fields before `reply`, and
 * the destinations in `reply`. */
struct hps_redis_command {
    uint16_t slot; /* of its keys; a command without keys uses any slot of the intended node */
    uint8_t flags;
    const void *bytes; /* encoded by codec.h; borrowed for the call */
    size_t size;
    /* Result: reply.status is OK, the status of a server error (codec.h), or
     *   DEADLINE     no reply in time
     *   UNAVAILABLE  the node is down, the connection broke, or no node has the slot
     *   IO           a malformed reply
     *   EXHAUSTED    a reply larger than allowed
     * reply.error has the reason. The client handles MOVED, ASK and TRYAGAIN itself. */
    struct hps_redis_reply reply;
    /* Result if reply.status is not OK: the server may have executed the command. */
    bool maybe_done;

    /* Private to the client. */
    struct hps_redis_command *next;
    int32_t target;
    uint16_t n_redirects;
    uint8_t state;
};

/* Run the commands. The commands of one node are pipelined over one connection, in order. Different
 * nodes run their commands at the same time. So all commands together take one round trip. A
 * command that is redirected or sent again may run after later commands.
 *
 * unit    deadline_us: hps_clock_us; 0: no deadline, and all commands count as HPS_REDIS_QUICK
 * thread  any; blocks until every command has a reply or has failed
 * error   the status of the first command that failed; each command has its own in reply.status */
hps_status hps_redis_cluster_run(struct hps_redis_cluster *cluster,
                                 struct hps_redis_command *commands, uint32_t n,
                                 uint64_t deadline_us) HPS_MUST_CHECK;

/* ---- status ---------------------------------------------------------------------------------- */

enum hps_redis_kind { HPS_REDIS_UNKNOWN, HPS_REDIS_STANDALONE, HPS_REDIS_CLUSTERED };
/* HPS_REDIS_ENTRY: a configured address that is not in the map of slots. */
enum hps_redis_role { HPS_REDIS_ENTRY, HPS_REDIS_MASTER, HPS_REDIS_REPLICA };

/* Wait until the map of slots is known and the client is connected to all its masters. For start-up
 * and tests. False: the deadline (hps_clock_us) has passed. */
bool hps_redis_cluster_wait(struct hps_redis_cluster *cluster, uint64_t deadline_us);
/* One slot of each master, for commands without keys: *out_n slots, at most `capacity`. */
void hps_redis_cluster_masters(struct hps_redis_cluster *cluster, uint16_t *out_slots,
                               uint32_t capacity, uint32_t *out_n);
/* Write the text "ADDRESS: last failure" of a node that is down or does not return the map of
 * slots; "" if there is no such node. */
void hps_redis_cluster_why(struct hps_redis_cluster *cluster, char *out_text, size_t size);

struct hps_redis_node_stats {
    char address[280]; /* in the format of hps_addr_print */
    enum hps_redis_role role;
    /* The node is usable for commands. False: its breaker is open, or it has no connection although
     * commands need one. */
    bool up;
    uint32_t n_slots; /* 0 for replicas and HPS_REDIS_ENTRY */
    uint32_t n_connections;
    /* Time from sending commands to the first reply: moving average over about 16 round trips. */
    uint64_t latency_us;
    uint64_t n_commands;
    uint64_t n_rows; /* rows in replies (hps_redis_rows), found or absent */
    uint64_t n_rows_found;
    uint64_t n_errors; /* error replies, except NOSCRIPT, after which the script is loaded */
    uint64_t n_timeouts;
    uint64_t n_broken;  /* connections that broke or could not be opened */
    uint64_t n_refused; /* commands not sent because the node was down */
    uint64_t n_bytes_sent;
    uint64_t n_bytes_received;
    char error[HPS_REDIS_ERROR_MAX]; /* its last failure, also if it is up; "": never failed */
};

struct hps_redis_stats {
    enum hps_redis_kind kind;
    uint32_t n_nodes;     /* number of nodes that hps_redis_cluster_nodes lists */
    uint32_t n_slots;     /* slots that have a node */
    uint32_t n_slots_up;  /* slots whose master is up */
    uint64_t n_refreshes; /* requests of the map of slots that have ended, failed ones included */
    uint64_t n_moved;     /* MOVED replies */
    uint64_t n_ask;       /* ASK replies */
    uint64_t n_tryagain;  /* TRYAGAIN replies */
    uint64_t n_down;      /* CLUSTERDOWN and LOADING replies */
    /* Node and reason of the last failure to get the map of slots. "": no failure since the current
     * map was received. */
    char error[HPS_REDIS_ERROR_MAX];
};

void hps_redis_cluster_stats(struct hps_redis_cluster *cluster, struct hps_redis_stats *out_stats);
/* Describe the first `capacity` nodes: masters, replicas, and configured addresses that are neither
 * (HPS_REDIS_ENTRY). Returns the number of nodes written. */
uint32_t hps_redis_cluster_nodes(struct hps_redis_cluster *cluster,
                                 struct hps_redis_node_stats *out_nodes, uint32_t capacity);

#endif
