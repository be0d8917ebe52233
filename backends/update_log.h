/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of logs of updates: topics with numbered partitions, each a sequence of records
 * with offsets. `struct hps_update_log` is the configured source. Each updater thread opens its own
 * *consumer* and sets the offset at which it reads each partition; hpsd never reads committed
 * positions from the log. Only server/main.c names a concrete log.
 *
 * Threads: a consumer belongs to one thread, which may block in the calls with a timeout. Only
 * `wake` may be called from other threads. Calls of the log itself are thread-safe.
 *
 * Errors: no call ends the process. An implementation writes only its library's messages to the
 * daemon's log, at debug level. It reports each change of state, such as DOWN and UP, once: by an
 * event or a status, to the thread that polls.
 *
 *     topics ─▶ watch ─▶ offsets ─▶ assign ─▶ poll ─▶ … ─▶ GAP, GONE: stopped ─▶ (operator) assign
 *                 │                            └▶ DOWN … UP: the consumer reconnects by itself
 *                 └▶ leader_response: the leader's latest response with the end of the partition
 *
 * A consumer cannot always recognize that a topic was recreated under its old name. GAP and GONE
 * report it if possible. But if the new topic has grown past the consumer's offset while the
 * consumer was disconnected, reading continues as if it were the old topic. So the updater keeps a
 * *witness*, a record that it has read, and compares it later (recall). A different record at the
 * same offset means another topic. Topic ids, if the log has them, identify a topic directly.
 *
 * Delivered records prove nothing about freshness, and neither does a lack of records: the server
 * that has the partition may be unreachable. Only a response of the partition's leader to a request
 * of known time proves freshness (watch, leader_response). Every record logged before that request
 * has an offset below the end of the partition in the response. That concerns known partitions.
 * Whether there are others is known as of the latest list (topics).
 *
 * To apply back-pressure, the updater stops polling. Prefetch is bounded, and the log does not
 * expel slow consumers. To pause a partition, unassign it. To resume it or to seek, assign it at
 * the offset of the first record that is not yet applied.
 */
#ifndef HPS_BACKENDS_UPDATE_LOG_H
#define HPS_BACKENDS_UPDATE_LOG_H

#include "base/status.h"
#include "base/types.h"

/* Whether the log keeps only the last record of each key of a topic. */
enum hps_compaction { HPS_COMPACTION_UNKNOWN, HPS_COMPACTION_NO, HPS_COMPACTION_YES };

enum hps_record_time {
    HPS_RECORD_TIME_NONE,
    HPS_RECORD_TIME_CREATED, /* set by the producer: its event time */
    HPS_RECORD_TIME_APPENDED /* set by the log when it appended the record */
};

struct hps_consumer_topic {
    const char *name;
    const char *id; /* a recreated topic has another id; "": not known */
    /* hps_clock_forward_ms when the newest answered request for the id was sent; 0: none was
     * answered. The topic had this id after that time. */
    int64_t id_asked_unix_ms;
    int32_t n_partitions; /* numbered from 0; never decreases, unless the topic is recreated. 0: it
                             does not exist, or hpsd may not see it */
    enum hps_compaction compaction;
    int64_t delete_retention_ms; /* how long a compacted topic keeps tombstones; -1: not known */
    /* The log has all records younger than this; 0: not known, or retention is limited by size. */
    int64_t kept_ms;
    enum hps_record_time time_of; /* the times of new records; NONE: not known */
};

/* The newest answered list of a consumer's topics. It proves that the server which answered knew
 * of no other topic, and of no other partition, when it received the request. A topic or partition
 * that was created before that may be missing: a server learns of it from the cluster's controller,
 * usually within milliseconds, but any time later if the controller cannot reach the server. A
 * topic or partition that was listed before counts as deleted only after all answers lacked it for
 * 1 s; until then such answers prove nothing and are not reported. A topic that appears is reported
 * once its settings are known, or after 1 s; until then the list before it stays the newest. */
struct hps_consumer_topics {
    uint64_t asked_us;      /* hps_clock_us when its request was sent; 0: none was answered yet */
    int64_t asked_unix_ms;  /* the same moment by hps_clock_forward_ms */
    const char *cluster_id; /* "": the log has no cluster id, or it is not known */
    const struct hps_consumer_topic *topics; /* [n_topics] in order of name */
    uint32_t n_topics;
    char error[160]; /* why newer requests had no answer, or one that proves nothing; "": not known
                      */
};

/* Offsets of one partition, as the log reports them. */
struct hps_consumer_offsets {
    const char *topic; /* NULL: the entry is skipped */
    int32_t partition;
    int64_t time_unix_ms; /* in: time to look up; -1: no time */
    int64_t low;          /* offset of the first record that exists */
    int64_t high;         /* offset after the last readable record (of committed transactions) */
    /* Offset of the first record at or after time_unix_ms; `high` if there is no such record, or
     * no time was given. */
    int64_t at_time;
    hps_status status; /* NOT_FOUND: no such partition; PERMISSION; UNAVAILABLE: no response */
};

struct hps_consumer_position {
    const char *topic;
    int32_t partition;
    int64_t offset; /* of the next record to read */
};

/* A watched partition. The consumer that made it owns it, and frees it when the consumer is
 * closed. */
struct hps_watch;

/* The responses of a partition's leader so far. */
struct hps_leader_response {
    /* hps_clock_us when the newest answered request was sent; 0: no response yet. */
    uint64_t asked_us;
    int64_t asked_unix_ms; /* the same moment by hps_clock_forward_ms */
    /* From the newest response: the offset after the last record, including records of open
     * transactions. */
    int64_t high;
    int32_t broker; /* id of the server that sent the newest response; -1: none, or not known */
    /* Result of the newest request that has ended: OK, or the reason why there was no response
     * (PERMISSION, NOT_FOUND, …). UNAVAILABLE also if a request has had no response for 2 s. */
    hps_status status;
    char text[160]; /* `status` explained, for messages; "" if it is OK */
};

/* Result of recall: the record at an offset. */
struct hps_recalled {
    int64_t asked_offset; /* the offset that was passed to recall */
    uint64_t asked_us;    /* hps_clock_us when the request was sent */
    hps_status status; /* OK: the fields below are set; otherwise as hps_leader_response.status */
    int32_t broker;    /* id of the server that answered; -1: not known */
    int64_t low;       /* offset of the first record of the partition */
    int64_t offset;    /* of the first record at or after asked_offset; -1: no such record */
    int64_t time_unix_ms; /* of that record */
    uint64_t hash;        /* of that record: hps_update_record_hash */
};

/* One record. All pointers are borrowed until the next poll, assign, unassign or close. */
struct hps_consumer_record {
    uint32_t tag; /* the tag that the caller passed to `assign` for the partition */
    int32_t partition;
    const char *topic;
    int64_t offset;
    int64_t time_unix_ms;
    enum hps_record_time time_of; /* the meaning of time_unix_ms */
    const void *key;              /* NULL: no key, which differs from an empty key */
    size_t key_size;
    const void *value; /* NULL: a tombstone */
    size_t value_size;
    const void *handle; /* private to the log */
};

enum hps_consumer_event_kind {
    /* Events of a partition, identified by its tag. */
    /* All records below `offset` were delivered. Reported again after further records. The event
     * proves nothing about freshness; only leader_response does. */
    HPS_CONSUMER_CAUGHT_UP,
    /* The log does not have `offset`, which is read next; `offsets` returns the offsets that exist.
     * The partition was unassigned. */
    HPS_CONSUMER_GAP,
    /* The topic or partition does not exist, or hpsd has no permission to see it; `offsets` returns
     * which. The partition was unassigned. A log may lack this event: `topics` always shows that a
     * partition is missing. If a list has it again later, it may belong to a recreated topic. */
    HPS_CONSUMER_GONE,
    /* The records from `offset` to `high` - 1 are unreadable: damaged, or larger than the limit for
     * inflating. They are skipped and reading continues. */
    HPS_CONSUMER_BAD,
    /* The partition cannot be read from `offset` on; `status` is the reason (PERMISSION, DATA_LOSS,
     * …). It was unassigned. */
    HPS_CONSUMER_FAILED,
    /* Events of the log; tag is HPS_CONSUMER_NO_TAG. */
    HPS_CONSUMER_DOWN, /* the log is unreachable (UNAVAILABLE) or refuses hpsd (UNAUTHENTICATED) */
    HPS_CONSUMER_UP,   /* the log is reachable again */
    HPS_CONSUMER_COMMITS /* commits have begun to fail (status), or succeed again (OK) */
};

#define HPS_CONSUMER_NO_TAG UINT32_MAX

/* What became of the dead letters since the previous flush. */
struct hps_dead_letters {
    uint64_t n_acknowledged;
    uint64_t n_lost;
    bool late; /* one that was sent before the previous flush is still in flight */
    /* OK: all letters are acknowledged. DEADLINE: some are still in flight; a later flush reports
     * them. Otherwise: why a letter was lost, such as NOT_FOUND, PERMISSION, INVALID (too large).
     */
    hps_status status;
    char text[160]; /* `status` explained, for messages; "" if it is OK */
};

/* One event; borrowed like a record. The kind says which fields are set. */
struct hps_consumer_event {
    enum hps_consumer_event_kind kind;
    uint32_t tag;
    int64_t offset;
    int64_t high; /* -1: not known */
    hps_status status;
    char text[256]; /* for messages */
};

/* Result of a poll. The events happened after the records of the same poll. These records stay
 * valid. After an event that unassigns a partition, no record with its tag comes until the
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
    const char *name; /* name of this consumer, unique in the process: "dlrm-3" */
    /* [n_topics] names of the topics that `topics` reports, each at most once; borrowed for the
     * call. They need not exist. */
    const char *const *topics;
    uint32_t n_topics;
    uint32_t settings_ms; /* interval at which the settings of topics are read */
};

struct hps_consumer_ops {
    /* Abandon pending work and free the consumer. May block for a short time. */
    void (*close)(struct hps_consumer *consumer);

    /* Get the newest list of this consumer's topics, which are listed about every 250 ms in the
     * background, from another server if one does not answer. Ids are queried about every 500 ms.
     * If the newest request for either was sent before since_us, another one is sent now. Does not
     * block.
     * owner   out_topics is borrowed until the next call of topics, or close */
    void (*topics)(struct hps_consumer *consumer, uint64_t since_us,
                   struct hps_consumer_topics *out_topics);
    /* Start to request the end of the partition from its leader, about every 50 ms, in the
     * background. The partition need not exist or be assigned. Another call for the same partition
     * returns the same watch. Does not block.
     * owner   the consumer owns *out_watch; `topic` is borrowed for the call
     * error   NO_MEMORY */
    hps_status (*watch)(struct hps_consumer *consumer, const char *topic, int32_t partition,
                        struct hps_watch **out_watch, struct hps_error *err);
    /* Get the latest response of the leader. An unresponsive leader does not delay the responses of
     * other leaders. */
    void (*leader_response)(const struct hps_watch *watch,
                            struct hps_leader_response *out_response);
    /* Start to request the record at `offset` from the leader, in the background. The request is
     * repeated until there is a response. Drops the result of an earlier recall. */
    void (*recall)(struct hps_watch *watch, int64_t offset);
    /* Get the result of the last recall. False: there is no recall, or it has no response yet. */
    bool (*recalled)(const struct hps_watch *watch, struct hps_recalled *out_recalled);
    /* Set low, high, at_time and status of each entry of `parts`. NO_MEMORY. If the
     * leader of a watched partition has not responded for a second, its status is UNAVAILABLE at
     * once, so that it delays no other partition. Strings are borrowed for the call. */
    hps_status (*offsets)(struct hps_consumer *consumer, struct hps_consumer_offsets *parts,
                          uint32_t n_parts, uint32_t timeout_ms, struct hps_error *err);
    /* Deliver the records of the partition from at->offset on, with this tag. If the partition is
     * assigned already, this is a seek: the next record delivered is at the new offset. If the log
     * does not have the offset any more, or not yet, a later poll reports a GAP. INVALID: the
     * offset is negative. */
    hps_status (*assign)(struct hps_consumer *consumer, const struct hps_consumer_position *at,
                         uint32_t tag, struct hps_error *err);
    /* Stop the delivery of records. No effect if the partition is not assigned. */
    void (*unassign)(struct hps_consumer *consumer, const char *topic, int32_t partition);
    /* Wait at most timeout_ms for records or events. Records of a partition come in offset order;
     * offsets may be missing (compaction, transactions). A result has at most records_max records,
     * and at most bytes_max bytes of keys and values, except that one larger record may come alone.
     * If the result is empty and the status is OK, timeout_ms has passed or `wake` was called.
     * error   INTERNAL: the consumer is broken; close it and open another */
    hps_status (*poll)(struct hps_consumer *consumer, uint32_t timeout_ms, uint32_t records_max,
                       uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                       struct hps_error *err);
    /* Make the current poll return soon; if none is running, the next poll. Any thread. */
    void (*wake)(struct hps_consumer *consumer);
    /* Get the value of the record's last header with this name. *out_value may be NULL if the size
     * is 0. False: no such header. */
    bool (*header)(const struct hps_consumer_record *record, const char *name,
                   const void **out_value, size_t *out_size);
    /* Report positions to the log, for tools that show them; hpsd never reads them. Does not block.
     * A failure is reported by an event (COMMITS) and does not delay reading. */
    void (*commit)(struct hps_consumer *consumer, const struct hps_consumer_position *positions,
                   uint32_t n_positions);

    /* Send a copy of the record to `topic`, with its headers and the additional headers hps-reason,
     * hps-topic, hps-partition and hps-offset. Waits for at most timeout_ms while the send queue is
     * full. After an error the letter is lost. */
    hps_status (*dead_letter)(struct hps_consumer *consumer, const char *topic,
                              const struct hps_consumer_record *record, const char *reason,
                              uint32_t timeout_ms, struct hps_error *err);
    /* Wait for at most timeout_ms until the log has acknowledged all dead letters. Those that are
     * still in flight then stay so, until the log answers or its library gives them up. */
    void (*dead_letter_flush)(struct hps_consumer *consumer, uint32_t timeout_ms,
                              struct hps_dead_letters *out_letters);
};

/* First member of the struct of each concrete consumer. */
struct hps_consumer {
    const struct hps_consumer_ops *ops;
};

struct hps_update_log_ops {
    const char *name; /* "kafka" */
    /* Close the log. All its consumers must be closed already. */
    void (*close)(struct hps_update_log *log);
    /* Open a consumer. Does not wait for the log to be reachable.
     * error   INVALID: the log's library refuses a configured property; NO_MEMORY */
    hps_status (*consumer_open)(struct hps_update_log *log,
                                const struct hps_consumer_options *options,
                                struct hps_consumer **out_consumer, struct hps_error *err);
};

struct hps_update_log {
    const struct hps_update_log_ops *ops;
};

#endif
