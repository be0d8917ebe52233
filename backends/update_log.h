/* SPDX-License-Identifier: Apache-2.0
 *
 * What a log of updates is to the rest of hpsd: topics of numbered partitions, each a sequence of
 * records by offset. One `struct hps_update_log` is the configured source; every updater
 * thread opens a *consumer* of its own on it and says itself where each partition begins: nothing
 * is kept here. Only server/main.c names a concrete log.
 *
 * Threads: a consumer belongs to one thread, which may block in the calls that take a time-out;
 * `wake` alone may come from any other. Calls of the log itself: any thread.
 *
 * Nothing here ends the process, and nothing here logs (but for what a library says, at debug):
 * what happens is reported by events and statuses, once per change, to the thread that polls.
 *
 * A topic made anew under an old name cannot always be distinguished from the old one: GAP and GONE
 * report it where they can, but one that has grown past our offset while nobody looked reads on as
 * if nothing had happened. So who reads keeps a *witness*, a record that was read once, and has the
 * log asked for it again (recall): another record at that offset is another topic. Where topics
 * have ids, they show which topic it is.
 *
 *     topics ─▶ watch ─▶ offsets ─▶ assign ─▶ poll ─▶ … ─▶ GAP, GONE: stopped ─▶ (operator) assign
 *                 │                            └▶ DOWN … UP: the log reconnects by itself
 *                 └▶ heard: the end of the partition, asked of its leader again and again
 *
 * That records are delivered, or that none are, proves nothing: the log may not reach the server
 * that has the partition. What proves is an answer of the partition's own leader to a question that
 * was asked at a known time (watch, heard): all that was logged before the question lies before the
 * end that was answered.
 *
 * Back-pressure: not polling. What is fetched ahead is bounded; nobody is expelled for being slow.
 * Pause a partition: unassign. Resume or seek: assign again, at the first record not yet applied.
 */
#ifndef HPS_BACKENDS_UPDATE_LOG_H
#define HPS_BACKENDS_UPDATE_LOG_H

#include "base/status.h"
#include "base/types.h"

/* Whether the log keeps only the last record of each key of a topic. */
enum hps_compaction { HPS_COMPACTION_UNKNOWN, HPS_COMPACTION_NO, HPS_COMPACTION_YES };

struct hps_consumer_topic {
    const char *name;
    const char *id; /* asked for with this list: another one for a topic made anew; "": not known */
    int32_t n_partitions; /* numbered from 0; only ever grows, unless the topic was made anew */
    enum hps_compaction compaction;
    int64_t delete_retention_ms; /* how long a compacted topic keeps its tombstones; -1: unknown */
    int64_t kept_ms; /* the log has all records that are younger; 0: not known, or by size */
};

struct hps_consumer_topics {
    const char *cluster_id; /* "": this log has none */
    const struct hps_consumer_topic *topics;
    uint32_t n_topics;
};

/* Offsets of one partition, asked of the log itself. */
struct hps_consumer_offsets {
    const char *topic;
    int32_t partition;
    int64_t time_unix_ms; /* in: -1 none */
    int64_t low;          /* first record that is there */
    int64_t high;         /* one past the last that may be read (of committed transactions) */
    int64_t at_time;      /* first record of that time or later; none, or no time asked: high */
    hps_status status;    /* NOT_FOUND: no such partition; PERMISSION; UNAVAILABLE: no answer */
};

struct hps_consumer_position {
    const char *topic;
    int32_t partition;
    int64_t offset; /* of the record that is next */
};

/* A partition that is watched. Owned by its consumer, until that is closed. */
struct hps_watch;

/* A leader whose answers are further apart than this was silent between them. */
enum { HPS_LEADER_SILENT_US = 2 * 1000 * 1000 };

/* What the leader of a partition has said. */
struct hps_leader_word {
    uint64_t asked_us; /* hps_clock_us, as the newest question that was answered was sent; 0: none
                          was answered yet */
    int64_t asked_unix_ms; /* the same moment, on the wall clock */
    uint64_t since_us; /* of the questions that were answered one after the other, up to that one,
                          without a silence in between, the first; hps_clock_us. Does not depend on
                          how often who hears it looks */
    int64_t high;      /* the answer: one past the last record, be it of an open transaction */
    hps_status status; /* of the newest question that has ended: OK, or why it has no answer
                          (UNAVAILABLE, PERMISSION, NOT_FOUND, …) */
    char text[160];    /* ... for a person; "" with OK */
};

/* What is at an offset now. */
struct hps_recalled {
    int64_t asked_offset;
    uint64_t asked_us; /* as the question was sent */
    hps_status status; /* OK: the rest is known; else as hps_leader_word.status */
    int64_t low;       /* first record of the partition */
    int64_t offset;    /* of the first record at or behind asked_offset; -1: there is none */
    int64_t time_unix_ms;
    uint64_t hash; /* hps_update_record_hash of base/rows/update_record.h */
};

enum hps_record_time {
    HPS_RECORD_TIME_NONE,
    HPS_RECORD_TIME_CREATED, /* by the producer: its event time */
    HPS_RECORD_TIME_APPENDED /* by the log, when it came there */
};

/* A record as it came. All pointers are borrowed until the next poll, assign, unassign or close. */
struct hps_consumer_record {
    uint32_t tag; /* what assign was given for the partition */
    int32_t partition;
    const char *topic;
    int64_t offset;
    int64_t time_unix_ms;
    enum hps_record_time time_of;
    const void *key; /* NULL: the record has none, which is not an empty one */
    size_t key_size;
    const void *value; /* NULL: a tombstone */
    size_t value_size;
    const void *handle; /* the log's own */
};

enum hps_consumer_event_kind {
    /* Of a partition, by its tag. */
    HPS_CONSUMER_CAUGHT_UP, /* all up to `offset` - 1 were delivered; reported again after more
                               came. Says nothing of when: see heard */
    HPS_CONSUMER_GAP,    /* `offset` was asked for, the log has [low, high): stopped, unassigned */
    HPS_CONSUMER_GONE,   /* topic or partition does not exist, or the user may not see it (ask for
                            offsets): stopped, unassigned. When it is listed again, it may be
                            another one of the same name */
    HPS_CONSUMER_BAD,    /* the records from `offset` to `high` - 1 cannot be read (damaged, larger
                            than what can be inflated): they are left out, reading goes on */
    HPS_CONSUMER_FAILED, /* not to be read from `offset` on, see status (PERMISSION, DATA_LOSS, …):
                            stopped, unassigned */
    /* Of the log; tag is HPS_CONSUMER_NO_TAG. */
    HPS_CONSUMER_DOWN,   /* not reachable (UNAVAILABLE), or refuses us (UNAUTHENTICATED) */
    HPS_CONSUMER_UP,     /* reachable again */
    HPS_CONSUMER_COMMITS /* commits fail now (status), or work again (OK) */
};

#define HPS_CONSUMER_NO_TAG UINT32_MAX

/* Something that happened; borrowed like a record. */
struct hps_consumer_event {
    enum hps_consumer_event_kind kind;
    uint32_t tag;
    int64_t offset;
    int64_t low; /* -1: not known */
    int64_t high;
    hps_status status;
    const char *text; /* for a person; never NULL */
};

/* What a poll brought. Events come after the records beside them: a GAP says nothing of records
 * delivered before it, and after the event no record of that tag comes until it is assigned. */
struct hps_consumer_poll {
    const struct hps_consumer_record *records;
    uint32_t n_records;
    const struct hps_consumer_event *events;
    uint32_t n_events;
};

struct hps_update_log;
struct hps_consumer;

struct hps_consumer_options {
    const char *name;  /* of this consumer among those of the process: "dlrm-3" */
    const char *group; /* under which positions are committed; NULL: commits are not wanted */
    const char *model; /* whose topics: hps_et.<model> and hps_et.<model>.<table> */
    const char *const
        *filters;       /* [n_filters] base/rows/topic_filter.h; strings borrowed for the call */
    uint32_t n_filters; /* 0: all */
};

struct hps_consumer_ops {
    /* Gives up what is under way. Takes a moment where there is a network. */
    void (*close)(struct hps_consumer *consumer);

    /* The topics of this consumer's model, in order of name, as the log has them now. To be asked
     * at first, every so often (new topics, more partitions), and after GONE.
     * owner   out_topics is borrowed until the next call of topics, or close
     * error   UNAVAILABLE, UNAUTHENTICATED: also reported by an event; DEADLINE */
    hps_status (*topics)(struct hps_consumer *consumer, uint32_t timeout_ms,
                         struct hps_consumer_topics *out_topics, struct hps_error *err);
    /* Have the partition's leader asked for its end, from now on and about every 50 ms, in the
     * background; no matter whether it is assigned, or there. Once per partition: another call
     * gives the same one. Does not wait.
     * owner   out_watch is the consumer's; strings are borrowed for the call
     * error   NO_MEMORY */
    hps_status (*watch)(struct hps_consumer *consumer, const char *topic, int32_t partition,
                        struct hps_watch **out_watch, struct hps_error *err);
    /* What its leader said last. One leader that does not answer delays no word of another. */
    void (*heard)(const struct hps_watch *watch, struct hps_leader_word *out_word);
    /* Have it asked what is at `offset`; the answer to an earlier question is dropped. */
    void (*recall)(struct hps_watch *watch, int64_t offset);
    /* False: not answered yet (it is asked again until it is), or nothing was asked. */
    bool (*recalled)(const struct hps_watch *watch, struct hps_recalled *out_recalled);
    /* Fill low, high, at_time and status of each; the call fails only if the log gives no answer
     * at all. Of a watched partition whose leader has given no word for a second: UNAVAILABLE at
     * once, so that it keeps nobody from the others. Strings are borrowed for the call. */
    hps_status (*offsets)(struct hps_consumer *consumer, struct hps_consumer_offsets *parts,
                          uint32_t n_parts, uint32_t timeout_ms, struct hps_error *err);
    /* Deliver the partition's records from `offset` on; a partition that is assigned is moved
     * there: no record from elsewhere comes after the call. What the log no longer has, or does not
     * have yet, is a GAP, found when it is read. INVALID: an offset below 0. */
    hps_status (*assign)(struct hps_consumer *consumer, const struct hps_consumer_position *at,
                         uint32_t tag, struct hps_error *err);
    /* Deliver no more of it. Not assigned: nothing. */
    void (*unassign)(struct hps_consumer *consumer, const char *topic, int32_t partition);
    /* Wait for records or events, at most timeout_ms. Records of a partition come in order of
     * offset, which may leave some out (compaction, transactions), with at least one record, and
     * otherwise no more than bytes_max bytes of keys and values and no more than records_max.
     * OK with nothing in it: time-out, or wake.
     * error   INTERNAL: this consumer is of no more use: close it and open another */
    hps_status (*poll)(struct hps_consumer *consumer, uint32_t timeout_ms, uint32_t records_max,
                       uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                       struct hps_error *err);
    /* The poll under way returns soon, or else the next one does. Any thread. */
    void (*wake)(struct hps_consumer *consumer);
    /* The value of the record's last header of that name, which may be NULL with size 0. False: it
     * has none. */
    bool (*header)(const struct hps_consumer_record *record, const char *name,
                   const void **out_value, size_t *out_size);
    /* Tell the log how far we are, for its tools: nothing here ever reads it. Does not wait, and
     * delays no reading, whatever becomes of it. */
    void (*commit)(struct hps_consumer *consumer, const struct hps_consumer_position *positions,
                   uint32_t n_positions);

    /* Send a copy of the record, its headers and those that say where it is from and why
     * (hps-reason, hps-topic, hps-partition, hps-offset) to `topic`. Waits only for room. */
    hps_status (*dead_letter)(struct hps_consumer *consumer, const char *topic,
                              const struct hps_consumer_record *record, const char *reason,
                              struct hps_error *err);
    /* Wait until the log has all of them. An error tells of any that failed since the last flush:
     * send again what was sent since, unless it is INVALID (larger than what the topic takes),
     * PERMISSION or NOT_FOUND, which it will be again. */
    hps_status (*dead_letter_flush)(struct hps_consumer *consumer, uint32_t timeout_ms,
                                    struct hps_error *err);
};

/* Embedded first in every concrete consumer. */
struct hps_consumer {
    const struct hps_consumer_ops *ops;
};

struct hps_update_log_ops {
    const char *name; /* "kafka" */
    /* Every consumer must have been closed. */
    void (*close)(struct hps_update_log *log);
    /* Does not wait for the log to be reachable. INVALID: a filter, or a property that only shows
     * itself now; NO_MEMORY. */
    hps_status (*consumer_open)(struct hps_update_log *log,
                                const struct hps_consumer_options *options,
                                struct hps_consumer **out_consumer, struct hps_error *err);
};

struct hps_update_log {
    const struct hps_update_log_ops *ops;
};

#endif
