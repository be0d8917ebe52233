/* SPDX-License-Identifier: Apache-2.0
 *
 * Every metric family of the daemon, in one list, and the series that hot paths hold on to.
 * Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_METRICS_H
#define HPS_SERVER_OBSERVE_METRICS_H

#include "base/metric.h"
#include "cache/lookup/lookup.h"

/* X(ID, type, name, labels, help) */
#define HPS_METRIC_LIST(X)                                                                       \
    X(BUILD_INFO, GAUGE, "build_info", "version,revision,cuda", "What is running; always 1.")    \
    X(RPC_REQUESTS, COUNTER, "rpc_requests_total", "method,code",                                \
      "RPCs that ended, by gRPC code.")                                                          \
    X(RPC_DURATION, HISTOGRAM, "rpc_duration_seconds", "method",                                 \
      "From the request's headers to the end of the call.")                                      \
    X(LOOKUP_REQUESTS, COUNTER, "lookup_requests_total", "code",                                 \
      "Lookups that ended, of all protocols, by gRPC code.")                                     \
    X(LOOKUP_DURATION, HISTOGRAM, "lookup_duration_seconds", "",                                 \
      "Time of lookups, of all protocols.")                                                      \
    X(REQUESTS_IN_FLIGHT, GAUGE, "requests_in_flight", "", "Look-ups that have not ended.")      \
    X(REQUESTS_REJECTED, COUNTER, "requests_rejected_total", "reason",                           \
      "Look-ups refused for want of room.")                                                      \
    X(REPLY_BYTES_IN_FLIGHT, GAUGE, "reply_bytes_in_flight", "",                                 \
      "Bytes of admitted replies that have not ended, and 50 for each of their keys.")           \
    X(CONNECTIONS, GAUGE, "connections", "listener", "Open connections.")                        \
    X(CONNECTIONS_REFUSED, COUNTER, "connections_refused_total", "reason",                       \
      "Connections that were closed at once, by the limit that they met.")                       \
    X(CONNECTIONS_DISPLACED, COUNTER, "connections_displaced_total", "reason",                   \
      "Connections that gave way to others, as all places were taken.")                          \
    X(CONNECTIONS_FAILED, COUNTER, "connections_failed_total", "reason",                         \
      "Connections that ended before their first request.")                                      \
    X(SLOW_READERS, COUNTER, "slow_readers_cut_total", "reason",                                 \
      "Connections and calls cut off, as their clients took replies too slowly.")                \
    X(SLOW_SENDERS, COUNTER, "slow_requests_refused_total", "reason",                            \
      "Calls refused, as their requests came too slowly.")                                       \
    X(LOOKUP_STAGE_DURATION, HISTOGRAM, "lookup_stage_duration_seconds", "stage",                \
      "Time of look-ups by stage.")                                                              \
    X(LOOKUP_KEYS, COUNTER, "lookup_keys_total", "model,table,status",                           \
      "Keys answered, as sent, by key status.")                                                  \
    X(LOOKUP_DEFAULTED_KEYS, COUNTER, "lookup_defaulted_keys_total", "model,reason",             \
      "Keys that got a default row because the true one was not waited for.")                    \
    X(LOOKUP_UNIQUE_KEYS, COUNTER, "lookup_unique_keys_total", "model,table",                    \
      "Keys answered, without duplicates of a request.")                                         \
    X(LOOKUP_ABSENT_KEYS, COUNTER, "lookup_absent_keys_total", "model",                          \
      "Unique keys known to be in no tier: no store that blocks was asked.")                     \
    X(LOOKUP_SHARED_KEYS, COUNTER, "lookup_shared_keys_total", "model",                          \
      "Unique keys that another look-up was fetching: it was waited for.")                       \
    X(TIER_KEYS, COUNTER, "tier_keys_total", "model,table,tier,result",                          \
      "Unique keys asked of a tier: hit or miss.")                                               \
    X(TIER_DURATION, HISTOGRAM, "tier_duration_seconds", "tier", "Time of a look-up in a tier.") \
    X(TIER_ERRORS, COUNTER, "tier_errors_total", "tier,reason", "Failed calls of a tier.")       \
    X(TIER_UP, GAUGE, "tier_up", "tier,node", "1 while the tier answers.")                       \
    X(TIER_ROWS, GAUGE, "tier_rows", "model,version,tier", "Rows stored.")                       \
    X(TIER_USED_BYTES, GAUGE, "tier_used_bytes", "model,version,tier", "Bytes used.")            \
    X(TIER_HUGE_PAGE_BYTES, GAUGE, "tier_huge_page_bytes", "model,version,tier",                 \
      "Bytes reserved in areas that have huge pages; 0: the system gives none.")                 \
    X(TIER_EVICTIONS, COUNTER, "tier_evictions_total", "model,table,tier",                       \
      "Rows evicted for others; all of a table, when its cache is given up.")                    \
    X(TIER_REFUSALS, COUNTER, "tier_refusals_total", "model,table,tier",                         \
      "Rows that a full tier did not take, as those it has are asked for as often.")             \
    X(TIER_RESIDENT_RATIO, GAUGE, "tier_resident_ratio", "model,version,table,tier",             \
      "Share of a table's rows that are in the tier.")                                           \
    X(TIER_CAPACITY_BYTES, GAUGE, "tier_capacity_bytes", "tier", "Budget; 0 for none.")          \
    X(TIER_REACHABLE, GAUGE, "tier_reachable_ratio", "tier",                                     \
      "Share of all keys whose server is up.")                                                   \
    X(TIER_REDIRECTS, COUNTER, "tier_redirects_total", "tier",                                   \
      "Commands that a server sent on to another one.")                                          \
    X(TIER_SERVER_LATENCY, GAUGE, "tier_server_latency_seconds", "tier,node",                    \
      "Round trip to a server, moving average of 16.")                                           \
    X(TIER_SERVER_SLOTS, GAUGE, "tier_server_slots", "tier,node", "Slots that a server has.")    \
    X(TIER_SERVER_CONNECTIONS, GAUGE, "tier_server_connections", "tier,node",                    \
      "Open connections to a server.")                                                           \
    X(TIER_SERVER_COMMANDS, COUNTER, "tier_server_commands_total", "tier,node",                  \
      "Commands sent to a server.")                                                              \
    X(TIER_SERVER_KEYS, COUNTER, "tier_server_keys_total", "tier,node,result",                   \
      "Keys that a server was asked for: hit or miss.")                                          \
    X(TIER_SERVER_BYTES, COUNTER, "tier_server_bytes_total", "tier,node,direction",              \
      "Bytes sent to and received from a server.")                                               \
    X(TIER_SERVER_FAILURES, COUNTER, "tier_server_failures_total", "tier,node,reason",           \
      "Errors, timeouts, broken connections, commands not sent while unreachable.")              \
    X(TIER_DROPPED_ROWS, GAUGE, "tier_dropped_rows", "model,version,tier",                       \
      "Rows of the only copy that overflow_margin evicted: look-ups find nothing.")              \
    X(SHARED_ROWS, COUNTER, "shared_rows_total", "tier,result",                                  \
      "What became of rows of a tier that daemons share.")                                       \
    X(SHARED_LOST_SHARDS, GAUGE, "shared_lost_shards", "model,version,tier",                     \
      "Shards of the only copy that are lost: look-ups of their keys fail.")                     \
    X(INSERTION_ROWS, COUNTER, "insertion_rows_total", "tier,mode",                              \
      "Rows found in a lower tier and put into this one.")                                       \
    X(INSERTION_DROPPED, COUNTER, "insertion_dropped_total", "reason",                           \
      "Rows that were not put into a higher tier.")                                              \
    X(INSERTION_QUEUE_ROWS, GAUGE, "insertion_queue_rows", "",                                   \
      "Rows that wait to be inserted behind answers, or are being fetched.")                     \
    X(INSERTION_SHARED_QUEUE_ROWS, GAUGE, "insertion_shared_queue_rows", "",                     \
      "Rows found below a tier that daemons share, which wait for their backfill into it.")      \
    X(STORE_READ_ONLY, GAUGE, "store_read_only", "",                                             \
      "1 while the persistent store takes no writes.")                                           \
    X(UPDATE_ROWS, COUNTER, "update_rows_total", "model,op",                                     \
      "Rows that updates have put or deleted, the last write of each key of a batch.")           \
    X(UPDATE_RECORDS, COUNTER, "update_records_total", "model",                                  \
      "Records of the update log that were read and whose positions are stored.")                \
    X(UPDATE_RECORDS_REJECTED, COUNTER, "update_records_rejected_total", "model,reason",         \
      "Bad records of the update log: dead letters, where they have a topic.")                   \
    X(UPDATE_BATCHES, COUNTER, "update_batches_total", "model", "Batches of updates applied.")   \
    X(UPDATE_SHARED_GAPS, COUNTER, "update_shared_gaps_total", "model",                          \
      "Shards of a shared tier that a batch of updates found behind it.")                        \
    X(UPDATE_SHARED_FAILED, COUNTER, "update_shared_failed_total", "model",                      \
      "Shards of a shared tier that a batch of updates did not reach.")                          \
    X(UPDATE_SHARED_REPLAYED, COUNTER, "update_shared_replayed_records_total", "model",          \
      "Records applied again to shards of a shared tier that were behind.")                      \
    X(UPDATE_SHARED_RESETS, COUNTER, "update_shared_resets_total", "model",                      \
      "Shards of a shared tier emptied, as the update log could not bring them up to date.")     \
    X(UPDATE_SHARED_BEHIND, GAUGE, "update_shared_behind", "model",                              \
      "1 while shards of a shared tier lag behind the version, and are not read from.")          \
    X(UPDATE_SHARED_APART, GAUGE, "update_shared_apart", "model",                                \
      "1 while a shared tier is bypassed, as the version has passed over records.")              \
    X(UPDATE_LAG, GAUGE, "update_lag_records", "topic,partition",                                \
      "Records of the update log that the active version has not applied.")                      \
    X(UPDATE_LAG_SECONDS, GAUGE, "update_lag_seconds", "topic,partition",                        \
      "For how long a partition may have had updates that the active version lacks.")            \
    X(UPDATE_COMPACTED, COUNTER, "update_compacted_records_total", "model",                      \
      "HCTR and packed records on compacted topics, which lose such records.")                   \
    X(UPDATE_THROTTLED, COUNTER, "update_throttled_batches_total", "model",                      \
      "Batches after which updates were throttled by the rate limit of rows.")                   \
    X(UPDATE_GAP, GAUGE, "update_gap", "topic,partition",                                        \
      "1 while a partition is stopped at a gap: records were lost or replaced.")                 \
    X(UPDATE_PARTITION_STATE, GAUGE, "update_partition_state", "topic,partition,state",          \
      "1 for the state that the partition is in, for the active version.")                       \
    X(UPDATE_FROZEN, GAUGE, "update_frozen", "model",                                            \
      "1: the active version passes over records that name no version.")                         \
    X(UPDATE_WAITS, GAUGE, "update_waits", "", "Calls that wait until updates are visible.")     \
    X(UPDATE_FRESHNESS, HISTOGRAM, "update_freshness_seconds", "model",                          \
      "From the time of an update, as its producer gives it, until every tier has it.")          \
    X(UPDATE_APPEND_FRESHNESS, HISTOGRAM, "update_append_freshness_seconds", "model",            \
      "The same of records that have the time of their arrival in the log.")                     \
    X(UPDATE_CLOCK_AHEAD, COUNTER, "update_clock_ahead_total", "model",                          \
      "Updates whose time is ahead of the clock here: their freshness counts as 0.")             \
    X(UPDATE_STALENESS, GAUGE, "update_staleness_seconds", "model",                              \
      "For how long there may have been updates that the active version lacks.")                 \
    X(UPDATE_SOURCE_UP, GAUGE, "update_source_up", "model",                                      \
      "1 while the leaders of all partitions answer.")                                           \
    X(UPDATE_HELD, GAUGE, "update_held", "model",                                                \
      "1 while updates of the active version are stalled: a batch is retried.")                  \
    X(MODEL_ACTIVE_VERSION, GAUGE, "model_active_version", "model",                              \
      "Number of the active version.")                                                           \
    X(MODEL_LOAD_PROGRESS, GAUGE, "model_load_progress_ratio", "model,version",                  \
      "Share of a load that is done.")                                                           \
    X(MODEL_LOAD_FAILURES, COUNTER, "model_load_failures_total", "model",                        \
      "Loads that failed, also of configured models whose files cannot be opened.")              \
    X(AUDIT_LINES_LOST, COUNTER, "audit_lines_lost_total", "",                                   \
      "Lines that server.audit_log did not take.")                                               \
    X(READY, GAUGE, "ready", "", "1 while /readyz answers 200.")                                 \
    X(CONFIG_DRIFT, GAUGE, "config_drift", "",                                                   \
      "Models of which models[] has changed since the active version was loaded.")

enum hps_metric_id {
#define HPS_METRIC_ENUM(id, type, name, labels, help) HPS_M_##id,
    HPS_METRIC_LIST(HPS_METRIC_ENUM)
#undef HPS_METRIC_ENUM
        HPS_M_COUNT
};

enum { HPS_METRIC_TABLE_SERIES_MAX = 4096 };

/* Stages of a look-up, which add up to its duration; also in the slow log and in Explain, which has
 * those up to ENCODE. */
#define HPS_STAGE_LIST(X)                                                                         \
    X(DECODE, "decode")                                                                           \
    X(RECEIVE, "receive")     /* before: from its head to its last byte */                        \
    X(ADMISSION, "admission") /* waiting for room for its reply */                                \
    X(QUEUE, "queue")         /* waiting for a worker or an I/O thread */                         \
    X(GPU, "gpu")             /* asked of a device until it has answered */                       \
    X(HOST, "host")           /* in the tier, as the next two */                                  \
    X(REDIS, "redis")                                                                             \
    X(ROCKSDB, "rocksdb")                                                                         \
    X(WAIT, "wait") /* for rows that another look-up was fetching already */                      \
    X(UNIT, "unit") /* of one that wants a unit: waiting for updates, or until they are held */   \
    X(WORK, "work") /* its own: duplicates, policies, rows put into higher tiers and the reply */ \
    X(LOOP, "loop") /* waiting for its event loop, which is busy with others */                   \
    X(ENCODE, "encode")                                                                           \
    X(SEND, "send")

enum hps_stage {
#define HPS_STAGE_ENUM(id, name) HPS_STAGE_##id,
    HPS_STAGE_LIST(HPS_STAGE_ENUM)
#undef HPS_STAGE_ENUM
        HPS_STAGE_COUNT
};

const char *hps_stage_name(enum hps_stage stage);

/* Why look-ups of this policy answer default rows: label of lookup_defaulted_keys_total. Not of
 * exact ones, which answer none. */
const char *hps_defaulted_reason(enum hps_miss_policy policy);

/* Why a look-up was rejected: label of requests_rejected_total. */
enum hps_reject {
    HPS_REJECT_REPLY_BYTES, /* its reply would be larger than one may be */
    HPS_REJECT_QUEUE,       /* no room for its reply beside the others, in time */
    HPS_REJECT_CONNECTION,  /* no room for it beside the other replies of its connection, in time */
    HPS_REJECT_WORKERS,     /* too many wait for a worker or an I/O thread */
    HPS_REJECT_REQUESTS_PER_S, /* whoever asks has had its look-ups of this second */
    HPS_REJECT_REPLY_QUOTA,    /* whoever asks has as many bytes of replies in flight as it may */
    HPS_REJECT_COUNT
};

enum { HPS_RPC_CODES = 17 };
/* "NOT_FOUND" and so on, below HPS_RPC_CODES: label of rpc_requests_total. */
const char *hps_rpc_code_name(unsigned code);

/* What the look-up service counts. */
struct hps_service_metrics {
    struct hps_lookup_metrics lookup;
    struct hps_metric *requests[HPS_RPC_CODES];
    struct hps_metric *duration;
    struct hps_metric *stage_duration[HPS_STAGE_COUNT];
    struct hps_metric *rejected[HPS_REJECT_COUNT];
    struct hps_metric *requests_in_flight;
    struct hps_metric *reply_bytes_in_flight;
};

/* A registry with all families. NULL: no memory. Free with hps_metrics_free. */
struct hps_metrics *hps_server_metrics_new(void);

/* The series of a family; as many values as it has labels, the others NULL. Never NULL. */
struct hps_metric *hps_server_metric(struct hps_metrics *metrics, enum hps_metric_id id,
                                     const char *v0, const char *v1, const char *v2,
                                     const char *v3);

void hps_service_metrics_fill(struct hps_metrics *metrics, struct hps_service_metrics *out_series);
/* Series of tiers that the version lacks stay NULL, so that they are not exported. */
void hps_table_metrics_fill(struct hps_metrics *metrics, const struct hps_version *version,
                            uint32_t table_id, struct hps_table_metrics *out_series);
/* Count the rows of a version that went for others since the last time. Its spaces are open. */
void hps_table_metrics_evictions(const struct hps_version *version);

#endif
