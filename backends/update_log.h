/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of logs of updates: topics with numbered partitions, each a sequence of records
 * with offsets. `struct hps_update_log` is the configured source. Each updater thread opens its own
 * *consumer* and says where each partition begins; the log stores no positions for it. Only
 * server/main.c names a concrete log.
 *
 * Threads: a consumer belongs to one thread, which may block in the calls with a timeout. Only
 * `wake` may come from other threads. Calls of the log itself are thread-safe.
 *
 * Errors: no call ends the process. Nothing is logged but messages of the library, at debug level.
 * Events and statuses report each change once, to the thread that polls.
 *
 *     topics ─▶ watch ─▶ offsets ─▶ assign ─▶ poll ─▶ … ─▶ GAP, GONE: stopped ─▶ (operator) assign
 *                 │                            └▶ DOWN … UP: the log reconnects by itself
 *                 └▶ heard: the leader's latest answer for the end of the partition
 *
 * A topic that was recreated under its old name cannot always be recognized. GAP and GONE report it
 * if possible. But if the new topic has grown past our offset while the consumer was away, reading
 * continues as if it were the old one. So the reader keeps a *witness*, a record that it has read,
 * and compares it later (recall). A different record at that offset means another topic. Topic ids,
 * if the log has them, identify a topic directly.
 *
 * Delivery of records proves nothing about freshness, and neither does silence: the server that has
 * the partition may be unreachable. Only an answer of the partition's leader to a request of known
 * time does (watch, heard). Every record logged before that request is below the end in the answer.
 *
 * Back-pressure: do not poll. Prefetch is bounded, and slow consumers are not expelled. To pause a
 * partition, unassign it. To resume or seek, assign it at the first record that is not yet applied.
 */
#ifndef HPS_BACKENDS_UPDATE_LOG_H
#define HPS_BACKENDS_UPDATE_LOG_H

#include "base/status.h"
#include "base/types.h"

/* Whether the log keeps only the last record of each key of a topic. */
enum hps_compaction { HPS_COMPACTION_UNKNOWN, HPS_COMPACTION_NO, HPS_COMPACTION_YES };

struct hps_consumer_topic {
    const char *name;
    /* Read together with this list; a recreated topic has another id; "": not known. */
    const char *id;
    int32_t n_partitions; /* numbered from 0; grows only, unless the topic is recreated */
    enum hps_compaction compaction;
    int64_t delete_retention_ms; /* how long a compacted topic keeps tombstones; -1: not known */
    /* The log has all records younger than this; 0: not known, or limited by size. */
    int64_t kept_ms;
};

struct hps_consumer_topics {
    const char *cluster_id; /* "": the log has no cluster id */
    const struct hps_consumer_topic *topics;
    uint32_t n_topics;
};

/* Offsets of one partition, as the log reports them. */
struct hps_consumer_offsets {
    const char *topic;
    int32_t partition;
    int64_t time_unix_ms; /* in: time to look up; -1: none */
    int64_t low;          /* offset of the first record that exists */
    int64_t high;         /* one past the last readable record (of committed transactions) */
    /* First record at or after time_unix_ms; `high` if none, or no time was given. */
    int64_t at_time;
    hps_status status; /* NOT_FOUND: no such partition; PERMISSION; UNAVAILABLE: no answer */
};

struct hps_consumer_position {
    const char *topic;
    int32_t partition;
    int64_t offset; /* of the next record */
};

/* A watched partition. Owned by its consumer until that is closed. */
struct hps_watch;

/* If a leader's answers are further apart than this, it was silent in between. */
enum { HPS_LEADER_SILENT_US = 2 * 1000 * 1000 };

/* The answers of a partition's leader so far. */
struct hps_leader_word {
    /* hps_clock_us when the newest answered request was sent; 0: no answer yet. */
    uint64_t asked_us;
    int64_t asked_unix_ms; /* the same moment in wall-clock time */
    /* hps_clock_us when the first request of the current run of answers was sent, a run without a
     * silence up to asked_us; independent of how often the caller reads it. */
    uint64_t since_us;
    int64_t high; /* the answer: one past the last record, including records of open transactions */
    /* Of the newest request that ended: OK, or why there is no answer (UNAVAILABLE, PERMISSION,
     * NOT_FOUND, …). */
    hps_status status;
    char text[160]; /* the reason for people; "" with OK */
};

/* Result of recall: the record at an offset. */
struct hps_recalled {
    int64_t asked_offset;
    uint64_t asked_us; /* when the request was sent */
    hps_status status; /* OK: the fields below are set; otherwise as hps_leader_word.status */
    int64_t low;       /* offset of the first record of the partition */
    int64_t offset;    /* of the first record at or after asked_offset; -1: none */
    int64_t time_unix_ms;
    uint64_t hash; /* hps_update_record_hash of base/rows/update_record.h */
};

enum hps_record_time {
    HPS_RECORD_TIME_NONE,
    HPS_RECORD_TIME_CREATED, /* set by the producer: its event time */
    HPS_RECORD_TIME_APPENDED /* set by the log when it appended the record */
};

/* One record. All pointers are borrowed until the next poll, assign, unassign or close. */
struct hps_consumer_record {
    uint32_t tag; /* the tag that assign got for the partition */
    int32_t partition;
    const char *topic;
    int64_t offset;
    int64_t time_unix_ms;
    enum hps_record_time time_of;
    const void *key; /* NULL: no key, which differs from an empty key */
    size_t key_size;
    const void *value; /* NULL: a tombstone */
    size_t value_size;
    const void *handle; /* private to the log */
};

enum hps_consumer_event_kind {
    /* Events of a partition, identified by its tag. */
    /* All records below `offset` were delivered; reported again after more records came. Says
     * nothing about time: see heard. */
    HPS_CONSUMER_CAUGHT_UP,
    /* The log has [low, high), which lacks the assigned `offset`; stopped and unassigned. */
    HPS_CONSUMER_GAP,
    /* The topic or partition does not exist, or the user may not see it (call offsets); stopped and
     * unassigned. If it is listed again, it may be another topic of that name. */
    HPS_CONSUMER_GONE,
    /* The records from `offset` to `high` - 1 are unreadable (damaged, or larger than the limit for
     * inflating); they are skipped and reading continues. */
    HPS_CONSUMER_BAD,
    /* Unreadable from `offset` on, see status (PERMISSION, DATA_LOSS, …); stopped and
     * unassigned. */
    HPS_CONSUMER_FAILED,
    /* Events of the log; tag is HPS_CONSUMER_NO_TAG. */
    HPS_CONSUMER_DOWN,   /* unreachable (UNAVAILABLE), or it refuses us (UNAUTHENTICATED) */
    HPS_CONSUMER_UP,     /* reachable again */
    HPS_CONSUMER_COMMITS /* commits have begun to fail (status), or work again (OK) */
};

#define HPS_CONSUMER_NO_TAG UINT32_MAX

/* One event; borrowed like a record. */
struct hps_consumer_event {
    enum hps_consumer_event_kind kind;
    uint32_t tag;
    int64_t offset;
    int64_t low; /* -1: not known */
    int64_t high;
    hps_status status;
    const char *text; /* for people; never NULL */
};

/* Result of a poll. Events apply after the records of the same poll: a GAP does not concern records
 * delivered before it. After an event that unassigns, no record with that tag comes until the
 * partition is assigned again. */
struct hps_consumer_poll {
    const struct hps_consumer_record *records;
    uint32_t n_records;
    const struct hps_consumer_event *events;
    uint32_t n_events;
};

struct hps_update_log;
struct hps_consumer;

struct hps_consumer_options {
    const char *name;  /* name of this consumer, unique in the process: "dlrm-3" */
    const char *group; /* group under which positions are committed; NULL: no commits */
    const char *model; /* model whose topics are read: hps_et.<model> and hps_et.<model>.<table> */
    const char *const
        *filters;       /* [n_filters] base/rows/topic_filter.h; strings borrowed for the call */
    uint32_t n_filters; /* 0: no filter */
};

struct hps_consumer_ops {
    /* Abandons pending work. May take a moment if there is a network. */
    void (*close)(struct hps_consumer *consumer);

    /* List the topics of this consumer's model as the log has them now, ordered by name. Call it at
     * first, at intervals (new topics, more partitions), and after GONE.
     * owner   out_topics is borrowed until the next call of topics, or close
     * error   UNAVAILABLE, UNAUTHENTICATED: also reported by an event; DEADLINE */
    hps_status (*topics)(struct hps_consumer *consumer, uint32_t timeout_ms,
                         struct hps_consumer_topics *out_topics, struct hps_error *err);
    /* Start to request the end of the partition from its leader, about every 50 ms, in the
     * background. The partition need not be assigned, or exist. Another call for the same partition
     * returns the same watch. Does not block.
     * owner   the consumer owns *out_watch; strings are borrowed for the call
     * error   NO_MEMORY */
    hps_status (*watch)(struct hps_consumer *consumer, const char *topic, int32_t partition,
                        struct hps_watch **out_watch, struct hps_error *err);
    /* The latest answer of the leader. A leader that does not answer does not delay the answers of
     * others. */
    void (*heard)(const struct hps_watch *watch, struct hps_leader_word *out_word);
    /* Start to request the record at `offset` from the leader. Drops the answer to an earlier
     * request. */
    void (*recall)(struct hps_watch *watch, int64_t offset);
    /* False: no request was made, or it has no answer yet and is repeated until it has one. */
    bool (*recalled)(const struct hps_watch *watch, struct hps_recalled *out_recalled);
    /* Set low, high, at_time and status of each entry. The call fails only if the log does not
     * answer at all. A watched partition whose leader has not answered for a second gets
     * UNAVAILABLE at once, so that it does not delay the others. Strings are borrowed for the
     * call. */
    hps_status (*offsets)(struct hps_consumer *consumer, struct hps_consumer_offsets *parts,
                          uint32_t n_parts, uint32_t timeout_ms, struct hps_error *err);
    /* Deliver the records of the partition from `offset` on. If it is assigned already, it moves
     * there, and no record from elsewhere follows. An offset that the log no longer has, or does
     * not have yet, becomes a GAP when it is read. INVALID: offset is negative. */
    hps_status (*assign)(struct hps_consumer *consumer, const struct hps_consumer_position *at,
                         uint32_t tag, struct hps_error *err);
    /* Stop delivery. No effect if the partition is not assigned. */
    void (*unassign)(struct hps_consumer *consumer, const char *topic, int32_t partition);
    /* Wait at most timeout_ms for records or events. Records of a partition come in offset order;
     * offsets may be missing (compaction, transactions). A result has at most records_max records,
     * and at most bytes_max bytes of keys and values unless a single record is larger. An empty
     * result with OK means timeout or wake.
     * error   INTERNAL: the consumer is broken; close it and open another */
    hps_status (*poll)(struct hps_consumer *consumer, uint32_t timeout_ms, uint32_t records_max,
                       uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                       struct hps_error *err);
    /* Make the current poll return soon, or the next one if none is running. Any thread. */
    void (*wake)(struct hps_consumer *consumer);
    /* The value of the record's last header with that name. The value may be NULL with size 0.
     * False: no such header. */
    bool (*header)(const struct hps_consumer_record *record, const char *name,
                   const void **out_value, size_t *out_size);
    /* Report positions to the log for its own tools; hpsd never reads them back. Does not block. A
     * failure never delays reading. */
    void (*commit)(struct hps_consumer *consumer, const struct hps_consumer_position *positions,
                   uint32_t n_positions);

    /* Send a copy of the record to `topic`, with its headers and hps-reason, hps-topic,
     * hps-partition and hps-offset. Blocks only while the send queue is full. */
    hps_status (*dead_letter)(struct hps_consumer *consumer, const char *topic,
                              const struct hps_consumer_record *record, const char *reason,
                              struct hps_error *err);
    /* Wait until the log has acknowledged all dead letters. An error reports any failure since the
     * last flush: send all records since then again. INVALID (too large for the topic), PERMISSION
     * and NOT_FOUND would fail again. */
    hps_status (*dead_letter_flush)(struct hps_consumer *consumer, uint32_t timeout_ms,
                                    struct hps_error *err);
};

/* First member of the struct of each concrete consumer. */
struct hps_consumer {
    const struct hps_consumer_ops *ops;
};

struct hps_update_log_ops {
    const char *name; /* "kafka" */
    /* All consumers must be closed. */
    void (*close)(struct hps_update_log *log);
    /* Does not wait for the log to be reachable.
     * error   INVALID: a filter, or a property that can only be checked now; NO_MEMORY */
    hps_status (*consumer_open)(struct hps_update_log *log,
                                const struct hps_consumer_options *options,
                                struct hps_consumer **out_consumer, struct hps_error *err);
};

struct hps_update_log {
    const struct hps_update_log_ops *ops;
};

#endif
