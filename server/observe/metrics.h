/* SPDX-License-Identifier: Apache-2.0
 *
 * The metric families of the daemon, and structs with the series that lookups update. Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_METRICS_H
#define HPS_SERVER_OBSERVE_METRICS_H

#include "base/metric.h"
#include "cache/lookup/lookup.h"

/* X(ID, type, name, labels, help) */
#define HPS_METRIC_LIST(X)                                                                      \
    X(BUILD_INFO, GAUGE, "build_info", "version,revision,cuda", "Version of hpsd; always 1.")   \
    X(RPC_REQUESTS, COUNTER, "rpc_requests_total", "method,code",                               \
      "RPCs that ended, by gRPC code.")                                                         \
    X(RPC_DURATION, HISTOGRAM, "rpc_duration_seconds", "method",                                \
      "Time from the headers of the request to the end of the call.")                           \
    X(LOOKUP_REQUESTS, COUNTER, "lookup_requests_total", "code",                                \
      "Lookups that ended, of all protocols, by gRPC code.")                                    \
    X(LOOKUP_DURATION, HISTOGRAM, "lookup_duration_seconds", "",                                \
      "Time of lookups, of all protocols.")                                                     \
    X(REQUESTS_IN_FLIGHT, GAUGE, "requests_in_flight", "", "Lookups in flight.")                \
    X(REQUESTS_REJECTED, COUNTER, "requests_rejected_total", "reason",                          \
      "Lookups rejected because a limit or quota was reached.")                                 \
    X(REPLY_BYTES_IN_FLIGHT, GAUGE, "reply_bytes_in_flight", "",                                \
      "Memory of replies in flight, and of the work of lookups.")                               \
    X(LIMIT_USED, GAUGE, "limit_used", "limit", "Use of a limit by all clients, in bytes.")     \
    X(LIMIT_MAX, GAUGE, "limit_max", "limit", "The limit for all clients, in bytes.")           \
    X(LIMIT_LARGEST, GAUGE, "limit_largest", "limit",                                           \
      "Largest use of a limit by one address or identity, in bytes.")                           \
    X(LIMIT_WAITING, GAUGE, "limit_waiting", "limit", "Lookups that wait for memory.")          \
    X(LIMIT_REFUSED, COUNTER, "limit_refused_total", "limit,scope",                             \
      "Calls and replies that a limit refused at once.")                                        \
    X(CONNECTIONS, GAUGE, "connections", "listener", "Open connections.")                       \
    X(CONNECTIONS_REFUSED, COUNTER, "connections_refused_total", "reason",                      \
      "Connections closed when accepted, by the limit that was reached.")                       \
    X(CONNECTIONS_DISPLACED, COUNTER, "connections_displaced_total", "reason",                  \
      "Connections closed to accept others, because connections_max was reached.")              \
    X(CONNECTIONS_FAILED, COUNTER, "connections_failed_total", "reason",                        \
      "Connections that ended before their first request.")                                     \
    X(SLOW_READERS, COUNTER, "slow_readers_cut_total", "reason",                                \
      "Connections and calls ended because the client read replies too slowly.")                \
    X(SLOW_SENDERS, COUNTER, "slow_requests_refused_total", "reason",                           \
      "Calls rejected because the client sent the request too slowly.")                         \
    X(LOOKUP_STAGE_DURATION, HISTOGRAM, "lookup_stage_duration_seconds", "stage",               \
      "Time of lookups in each stage.")                                                         \
    X(LOOKUP_KEYS, COUNTER, "lookup_keys_total", "model,table,status",                          \
      "Keys looked up, with duplicates, by key status.")                                        \
    X(LOOKUP_DEFAULTED_KEYS, COUNTER, "lookup_defaulted_keys_total", "model,reason",            \
      "Keys that got the default row because the lookup did not wait for the true row.")        \
    X(LOOKUP_UNIQUE_KEYS, COUNTER, "lookup_unique_keys_total", "model,table",                   \
      "Keys looked up, without duplicates within a request.")                                   \
    X(LOOKUP_ABSENT_KEYS, COUNTER, "lookup_absent_keys_total", "model",                         \
      "Unique keys known to be in no tier, so that no blocking store was read.")                \
    X(LOOKUP_SHARED_KEYS, COUNTER, "lookup_shared_keys_total", "model",                         \
      "Unique keys that another lookup was already fetching.")                                  \
    X(TIER_KEYS, COUNTER, "tier_keys_total", "model,table,tier,result",                         \
      "Unique keys read from a tier: hit or miss.")                                             \
    X(TIER_DURATION, HISTOGRAM, "tier_duration_seconds", "tier", "Time of a lookup in a tier.") \
    X(TIER_ERRORS, COUNTER, "tier_errors_total", "tier,reason", "Failed calls of a tier.")      \
    X(TIER_UP, GAUGE, "tier_up", "tier,node", "1 while the tier responds.")                     \
    X(TIER_ROWS, GAUGE, "tier_rows", "model,version,tier", "Rows stored.")                      \
    X(TIER_USED_BYTES, GAUGE, "tier_used_bytes", "model,version,tier",                          \
      "Memory or disk space in use.")                                                           \
    X(TIER_HUGE_PAGE_BYTES, GAUGE, "tier_huge_page_bytes", "model,version,tier",                \
      "Memory reserved in huge pages; 0 if the system provides none.")                          \
    X(TIER_EVICTIONS, COUNTER, "tier_evictions_total", "model,table,tier",                      \
      "Rows evicted for other rows, or because the cache of their table was removed.")          \
    X(TIER_REFUSALS, COUNTER, "tier_refusals_total", "model,table,tier",                        \
      "Rows that a full tier did not insert, because its rows are used as often.")              \
    X(TIER_RESIDENT_RATIO, GAUGE, "tier_resident_ratio", "model,version,table,tier",            \
      "Share of a table's rows that are in the tier.")                                          \
    X(TIER_CAPACITY_BYTES, GAUGE, "tier_capacity_bytes", "tier", "Capacity; 0 if unlimited.")   \
    X(TIER_REACHABLE, GAUGE, "tier_reachable_ratio", "tier",                                    \
      "Share of the slots with a server that is up.")                                           \
    X(TIER_REDIRECTS, COUNTER, "tier_redirects_total", "tier",                                  \
      "Commands that a server redirected to another server.")                                   \
    X(TIER_SERVER_LATENCY, GAUGE, "tier_server_latency_seconds", "tier,node",                   \
      "Round trip to a server, moving average of about 16.")                                    \
    X(TIER_SERVER_SLOTS, GAUGE, "tier_server_slots", "tier,node", "Slots of a server.")         \
    X(TIER_SERVER_CONNECTIONS, GAUGE, "tier_server_connections", "tier,node",                   \
      "Open connections to a server.")                                                          \
    X(TIER_SERVER_COMMANDS, COUNTER, "tier_server_commands_total", "tier,node",                 \
      "Commands sent to a server.")                                                             \
    X(TIER_SERVER_KEYS, COUNTER, "tier_server_keys_total", "tier,node,result",                  \
      "Keys read from a server: hit or miss.")                                                  \
    X(TIER_SERVER_BYTES, COUNTER, "tier_server_bytes_total", "tier,node,direction",             \
      "Bytes sent to and received from a server.")                                              \
    X(TIER_SERVER_FAILURES, COUNTER, "tier_server_failures_total", "tier,node,reason",          \
      "Errors, timeouts, broken connections, and commands not sent to an unreachable server.")  \
    X(TIER_DROPPED_ROWS, GAUGE, "tier_dropped_rows", "model,version,tier",                      \
      "Rows that overflow_margin evicted and no other store has.")                              \
    X(TIER_DAMAGED_PAGES, GAUGE, "tier_damaged_pages", "model,version,tier",                    \
      "Damaged pages of base files that were found since the start.")                           \
    X(SHARED_ROWS, COUNTER, "shared_rows_total", "tier,result",                                 \
      "Rows read from or inserted into a tier that daemons share, by result.")                  \
    X(SHARED_LOST_SHARDS, GAUGE, "shared_lost_shards", "model,version,tier",                    \
      "Lost shards of the only copy: lookups of their keys fail.")                              \
    X(INSERTION_ROWS, COUNTER, "insertion_rows_total", "tier,mode",                             \
      "Rows found in a lower tier and inserted into this one.")                                 \
    X(INSERTION_DROPPED, COUNTER, "insertion_dropped_total", "reason",                          \
      "Rows that were not inserted into a higher tier.")                                        \
    X(INSERTION_QUEUE_ROWS, GAUGE, "insertion_queue_rows", "",                                  \
      "Rows that wait for insertion after replies, or are being fetched for it.")               \
    X(INSERTION_SHARED_QUEUE_ROWS, GAUGE, "insertion_shared_queue_rows", "",                    \
      "Rows that wait for insertion into a tier that daemons share.")                           \
    X(STORE_READ_ONLY, GAUGE, "store_read_only", "",                                            \
      "1 while the persistent store rejects writes.")                                           \
    X(UPDATE_ROWS, COUNTER, "update_rows_total", "model,op",                                    \
      "Rows that updates put or deleted, by the last write of each key in a batch.")            \
    X(UPDATE_RECORDS, COUNTER, "update_records_total", "model",                                 \
      "Records of the update log that were read and whose positions are stored.")               \
    X(UPDATE_RECORDS_REJECTED, COUNTER, "update_records_rejected_total", "model,reason",        \
      "Records not applied: invalid, or for a version that is not loaded.")                     \
    X(UPDATE_LETTERS_LOST, COUNTER, "update_dead_letters_lost_total", "model",                  \
      "Rejected records of which the dead-letter topic took no copy.")                          \
    X(UPDATE_BATCHES, COUNTER, "update_batches_total", "model", "Batches of updates applied.")  \
    X(UPDATE_SHARED_GAPS, COUNTER, "update_shared_gaps_total", "model",                         \
      "Shards of a shared tier that lacked earlier updates when a batch was applied.")          \
    X(UPDATE_SHARED_FAILED, COUNTER, "update_shared_failed_total", "model",                     \
      "Shards of a shared tier to which a batch of updates could not be written.")              \
    X(UPDATE_SHARED_REPLAYED, COUNTER, "update_shared_replayed_records_total", "model",         \
      "Records applied again to shards of a shared tier that lacked them.")                     \
    X(UPDATE_SHARED_RESETS, COUNTER, "update_shared_resets_total", "model",                     \
      "Shards of a shared tier emptied because the update log could not complete them.")        \
    X(UPDATE_SHARED_BEHIND, GAUGE, "update_shared_behind", "model",                             \
      "1 while shards of a shared tier lack updates of the version and are not read.")          \
    X(UPDATE_SHARED_APART, GAUGE, "update_shared_apart", "model",                               \
      "1 while the version bypasses a shared tier because it skipped records.")                 \
    X(UPDATE_LAG, GAUGE, "update_lag_records", "topic,partition",                               \
      "Records of the update log that the active version has not applied.")                     \
    X(UPDATE_LAG_SECONDS, GAUGE, "update_lag_seconds", "topic,partition",                       \
      "How long there may have been updates that the active version has not applied.")          \
    X(UPDATE_COMPACTED, COUNTER, "update_compacted_records_total", "model",                     \
      "HCTR and packed records on compacted topics, which lose such records.")                  \
    X(UPDATE_MISENCODED_KEYS, COUNTER, "update_misencoded_keys_total", "model",                 \
      "Sampled keys of keyed records that have a row only if read in another encoding.")        \
    X(UPDATE_THROTTLED, COUNTER, "update_throttled_batches_total", "model",                     \
      "Batches after which max_rows_per_s delayed updates.")                                    \
    X(UPDATE_GAP, GAUGE, "update_gap", "topic,partition",                                       \
      "1 while a partition is stopped at a gap: records were lost or replaced.")                \
    X(UPDATE_PARTITION_STATE, GAUGE, "update_partition_state", "topic,partition,state",         \
      "1 for the state of the partition in the active version, else 0.")                        \
    X(UPDATE_FROZEN, GAUGE, "update_frozen", "model",                                           \
      "1 while the active version skips records that do not name it.")                          \
    X(UPDATE_WAITS, GAUGE, "update_waits", "", "Calls that wait for updates or for a refresh.") \
    X(UPDATE_FRESHNESS, HISTOGRAM, "update_freshness_seconds", "model",                         \
      "Time from an update until every tier has it.")                                           \
    X(UPDATE_STALENESS, GAUGE, "update_staleness_seconds", "model",                             \
      "Age of the time up to which the active version has all updates.")                        \
    X(UPDATE_SOURCE_UP, GAUGE, "update_source_up", "model",                                     \
      "1 while the leaders of all partitions reply.")                                           \
    X(UPDATE_HELD, GAUGE, "update_held", "model",                                               \
      "1 while a batch of the active version cannot be applied and is retried.")                \
    X(MODEL_ACTIVE_VERSION, GAUGE, "model_active_version", "model",                             \
      "Number of the active version.")                                                          \
    X(MODEL_LOAD_PROGRESS, GAUGE, "model_load_progress_ratio", "model,version",                 \
      "Share of a load that is done.")                                                          \
    X(MODEL_LOAD_FAILURES, COUNTER, "model_load_failures_total", "model",                       \
      "Failed loads, including configured models whose files cannot be opened.")                \
    X(AUDIT_LINES_LOST, COUNTER, "audit_lines_lost_total", "",                                  \
      "Lines that could not be written to server.audit_log.")                                   \
    X(READY, GAUGE, "ready", "", "1 while /readyz returns 200.")                                \
    X(CONFIG_DRIFT, GAUGE, "config_drift", "",                                                  \
      "Models with a models[] entry that changed after the active version was loaded.")

enum hps_metric_id {
#define HPS_METRIC_ENUM(id, type, name, labels, help) HPS_M_##id,
    HPS_METRIC_LIST(HPS_METRIC_ENUM)
#undef HPS_METRIC_ENUM
        HPS_M_COUNT
};

/* Limit on the series with the label `table` that are printed (hps_metrics_new). */
enum { HPS_METRIC_TABLE_SERIES_MAX = 4096 };

/* Stages of a lookup; their times add up to its duration. The slow log shows all stages. The field
 * `explain` of a reply shows the stages before ENCODE, because it is encoded with the reply. */
#define HPS_STAGE_LIST(X)                                                                 \
    X(DECODE, "decode")       /* inflating and decoding the message */                    \
    X(RECEIVE, "receive")     /* before DECODE: from the headers to the last byte */      \
    X(ADMISSION, "admission") /* waiting for capacity for the reply */                    \
    X(QUEUE, "queue")         /* waiting for a worker or an I/O thread */                 \
    X(GPU, "gpu")             /* waiting for the answer of a device */                    \
    X(HOST, "host")           /* reading the host map */                                  \
    X(REDIS, "redis")         /* reading the shared store */                              \
    X(ROCKSDB, "rocksdb")     /* reading the durable store */                             \
    X(WAIT, "wait")           /* waiting for rows that another lookup fetches */          \
    X(UNIT, "unit")           /* CONSISTENCY_UNIT: waiting before rows are read again */  \
    X(WORK, "work")           /* all other work: duplicates, policies, copying of rows */ \
    X(LOOP, "loop")           /* waiting for a busy event loop */                         \
    X(ENCODE, "encode")       /* encoding the reply */                                    \
    X(SEND, "send")           /* sending the reply, until the call ends */

enum hps_stage {
#define HPS_STAGE_ENUM(id, name) HPS_STAGE_##id,
    HPS_STAGE_LIST(HPS_STAGE_ENUM)
#undef HPS_STAGE_ENUM
        HPS_STAGE_COUNT
};

const char *hps_stage_name(enum hps_stage stage);

/* The label `reason` of lookup_defaulted_keys_total for a lookup with this policy. The policy must
 * be WAIT, MEMORY_ONLY or THRESHOLD; lookups with HPS_MISS_EXACT wait for all rows. */
const char *hps_defaulted_reason(enum hps_miss_policy policy);

/* Why a lookup was rejected: the label `reason` of requests_rejected_total. */
enum hps_reject {
    HPS_REJECT_REPLY_BYTES,    /* the reply would exceed reply_bytes_max */
    HPS_REJECT_QUEUE,          /* reply_bytes_in_flight had no capacity within queue_ms_max */
    HPS_REJECT_CONNECTION,     /* connection_reply_bytes had no capacity for the reply */
    HPS_REJECT_WORKERS,        /* too many lookups wait for a worker or an I/O thread */
    HPS_REJECT_REQUESTS_PER_S, /* the identity has used up its quota requests_per_s */
    HPS_REJECT_REPLY_QUOTA,    /* the identity has used up its quota reply_bytes */
    HPS_REJECT_COUNT
};

enum { HPS_RPC_CODES = 17 }; /* gRPC codes: 0 to 16 */
/* The name of a gRPC code, such as "NOT_FOUND": label `code` of metrics. code < HPS_RPC_CODES. */
const char *hps_rpc_code_name(unsigned code);

/* Series of the lookup service. */
struct hps_service_metrics {
    struct hps_lookup_metrics lookup;
    struct hps_metric *requests[HPS_RPC_CODES];
    struct hps_metric *duration;
    struct hps_metric *stage_duration[HPS_STAGE_COUNT];
    struct hps_metric *rejected[HPS_REJECT_COUNT];
    struct hps_metric *requests_in_flight;
    struct hps_metric *reply_bytes_in_flight;
};

/* Make a registry with all families of HPS_METRIC_LIST. The caller frees it with hps_metrics_free.
 * NULL: out of memory. */
struct hps_metrics *hps_server_metrics_new(void);

/* Returns the series of a family with these label values. A missing series is created. The values
 * are in the order of the family's labels; pass NULL for unused values. Never returns NULL. */
struct hps_metric *hps_server_metric(struct hps_metrics *metrics, enum hps_metric_id id,
                                     const char *v0, const char *v1, const char *v2,
                                     const char *v3);

/* Set *out_series to the series of the lookup service. Series that are missing are created. */
void hps_service_metrics_fill(struct hps_metrics *metrics, struct hps_service_metrics *out_series);
/* Set *out_series to the series of a table. Series that are missing are created, except for tiers
 * that the version does not have. The pointers for these tiers are NULL. */
void hps_table_metrics_fill(struct hps_metrics *metrics, const struct hps_version *version,
                            uint32_t table_id, struct hps_table_metrics *out_series);
/* Add the version's evictions since the last call to the series tier_evictions_total of its tables.
 * The spaces of the version must be open. */
void hps_table_metrics_evictions(const struct hps_version *version);

#endif
