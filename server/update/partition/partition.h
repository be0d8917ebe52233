/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a stream and of its partitions. Several structs of a partition have one file that
 * changes them, as their comments say. Thread `update`, unless stated otherwise.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_PARTITION_H
#define HPS_SERVER_UPDATE_PARTITION_PARTITION_H

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/worker.h"
#include "server/update/partition/next.h"
#include "server/update/partition/options.h"
#include "server/update/partition/route.h"
#include "server/update/partition/view.h"

/* ---- a partition ----------------------------------------------------------------------------- */

/* An end of a partition, as its leader named it. */
struct update_end {
    int64_t high;
    int64_t asked_ms; /* when the request was sent: hps_clock_forward_ms, as all times of proofs and
                         identities */
    int64_t read_ms;  /* all records before `high` had been read at this time; 0: not yet */
};
enum { UPDATE_ENDS_MAX = 16 };

/* The rate of a counter over the last seconds. */
struct update_rate {
    uint64_t since_us; /* start of the measurement; 0: not started */
    uint64_t n;        /* the counter at since_us */
    double per_s;
};

/* A partition in the log's list of topics: source/topics.c. */
struct update_listed {
    bool present;        /* the last list has it */
    bool was_present;    /* the list before the last one had it */
    bool initial;        /* the first list of a version without any position had it */
    bool gone;           /* lists of a connected log have lacked it for 3 s */
    uint64_t missing_us; /* hps_clock_us of the first list without it; 0: the last list has it */
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* "": not known */
    int64_t id_asked_ms;                   /* the topic had this id after this time; 0: not known */
    enum hps_compaction compaction;
    int64_t delete_retention_ms; /* -1: not known */
    int64_t kept_ms;             /* the log has all records that are younger; 0: not known */
    enum hps_record_time time_of;
};

/* The part of a partition in the current batch. */
struct update_pending {
    bool dirty;    /* `read` is ahead of `applied` */
    bool moved;    /* by a command: `read` does not follow `applied` */
    bool skipped;  /* a record was skipped, since the version is frozen */
    uint32_t span; /* index among the partitions of the batch: sink/share.c */
};

/* Responses of the leader, and the as-of that they prove: source/proof.c. */
struct update_proof {
    struct hps_watch *watch;             /* of the current consumer; NULL: not watched yet */
    struct hps_leader_response response; /* the newest one to the current consumer */
    /* When the request for the newest response to any consumer was sent; 0: no response. */
    int64_t response_asked_ms;
    struct update_end ends[UPDATE_ENDS_MAX]; /* not reached by reads yet, oldest first */
    uint32_t n_ends;
    int64_t read_ms;   /* when `read.next` advanced last */
    int64_t as_of_ms;  /* every update logged before is published; 0: not known */
    int64_t seen_ms;   /* every update logged before was read, applied or not; 0: not known */
    int64_t seen_next; /* `read.next` at the time when seen_ms advanced */
};

/* Whether the topic is the one that was read: source/identity.c. */
struct update_identity {
    int64_t at_ms; /* the topic was the same at this time; 0: not known */
    int64_t
        since_ms; /* the topic had the witness, or an earlier one, at this time; 0: a stored one */
    /* The proof that is missing. OWN: the partition's own witness. ANY: its own witness, the
     * topic's id, or the witness of another partition with the same leader. */
    enum { UPDATE_IDENTITY_PROVED, UPDATE_IDENTITY_ANY, UPDATE_IDENTITY_OWN } needs;
    /* The next witness: a record that was read at candidate_ms. It becomes the witness when the
     * topic is proved to be the same at candidate_ms or later. */
    struct hps_witness candidate;
    int64_t candidate_ms;
    int64_t removed_ms; /* its witness was found to be removed, last at this time; 0: never */
    bool alone; /* its last proof did not hold for others: it is not requested in their place */
    bool asked; /* the record at asked_offset was requested at asked_ms, and is not compared yet */
    int64_t asked_ms;
    int64_t asked_offset;
    char asked_id[HPS_TOPIC_ID_BYTES_MAX]; /* the topic's id, as it was known at asked_ms */
    uint64_t none_us;  /* hps_clock_us since when no record is found at or after the witness; 0 */
    uint64_t again_us; /* hps_clock_us from when the record may be requested again */
};

/* Shards of a shared tier that lag, and the replay by which they catch up: sink/replay.c. */
struct update_replay {
    int64_t from; /* the first record that they have not applied; -1: they do not lag */
    int64_t next; /* `from` after the current batch of the replay */
    bool passed;  /* the replay skipped records that were not applied yet: it reads them again */
};

/* A partition of a stream. Its index is its tag. It is never removed. Thread `update`. */
struct update_partition {
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    struct hps_update_route route;

    enum update_phase phase;
    enum update_reason why; /* of the phase */
    bool other;             /* another version reads it; no list of this version had it */
    bool other_due;         /* the store must note this */
    bool paused;            /* by the operator; it is stored if `applied` has the same value */
    bool unassign_due;      /* it was stopped, and the consumer still reads it */
    bool stop_logged;       /* its stop was logged at level error, and it has not run since */
    char reason[200];       /* `why` as a text */
    char note[200];         /* a warning about its rows, for operators, while it runs */

    enum update_basis basis;
    struct hps_position *applied; /* published, also in the store */
    struct hps_position *read;    /* `applied` after the current batch */
    struct update_pending pending;
    int64_t skipped_end; /* skipped records are before this offset; 0: not known */

    struct update_listed *listed;
    int64_t high; /* the last end that the log named; -1: not known */
    struct update_proof *proof;
    struct update_identity *identity;

    int64_t to_commit; /* the offset to commit to the log once it is old enough; -1: none */
    int64_t committed;
    bool shared_asked; /* its position in a shared tier that has the only copy is known */
    /* Its position in a shared tier above a store, from before the offsets were requested; 0: not
     * known. */
    int64_t shared_at;
    struct update_replay *replay;

    bool form_logged;   /* the log has a warning: compaction does not understand its records */
    uint64_t n_records; /* read, since it was added */
    struct update_rate rate;
};

/* The state of a phase in views. Any thread. */
enum hps_partition_state update_partition_state(enum update_phase phase);

static inline bool update_is_published(const struct update_partition *partition)
{
    return partition->basis == UPDATE_PUBLISHED;
}

/* Whether its position or its pause must be stored. */
static inline bool update_unstored(const struct update_partition *partition)
{
    return partition->pending.dirty ||
           (update_is_published(partition) && partition->paused != partition->applied->paused);
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* The life of the stream's thread. Any thread sets STOPS; only the thread itself sets ENDED. */
enum update_life { UPDATE_LIVES, UPDATE_STOPS, UPDATE_ENDED };

/* Which switch of the model froze the version. A frozen version skips records that name no version,
 * since the active version is of another lineage. */
struct update_freeze {
    bool unstored;             /* the store does not have the current values */
    uint64_t by;               /* number of the last switch that `frozen` includes */
    _Atomic uint64_t asked_by; /* number of the last switch that freezes it. Any thread sets it */
};

/* State that other threads share with the stream's thread. */
struct update_board {
    struct hps_lock lock;
    struct hps_cond changed;
    struct hps_update_work *calls; /* commands that wait, oldest first */
    struct hps_consumer *wakeable; /* the stream's consumer; NULL: it is closed */
    uint64_t check_due_us;         /* thread `update`: when waiters check the view next */
};

/* A stream applies updates to one version. source/source.h, sink/sink.h and stream/stream.h define
 * the structs that it points to. */
struct hps_update_stream {
    struct hps_update_stream *next; /* by the updater's lock: streams that are older */
    uint64_t id;                    /* later streams have greater ones; set when it is listed */
    struct hps_updater *updater;
    struct hps_arena *memory; /* of what lives as long as the stream, also of its partitions */
    char *model, *lineage;
    int64_t number;
    atomic_bool active;
    atomic_int life; /* enum update_life */
    struct hps_worker thread;
    struct update_board *board; /* its lock guards the next three, too */
    struct update_refresh *refresh;
    struct update_shown *shown;
    struct hps_stream_view *view;

    struct update_common *common;
    const struct hps_config_update_source *source; /* options of `common` */
    /* The next members belong to the thread `update`. */
    struct hps_version *version; /* pinned */
    struct hps_consumer *consumer;
    char cluster[HPS_CLUSTER_BYTES_MAX]; /* of the log; "": not known */
    struct update_partition *partitions; /* by tag */
    uint32_t n_partitions, capacity;
    bool frozen;               /* records that name no version are skipped */
    bool shares;               /* a tier is shared with other daemons */
    bool sole_copy;            /* this tier has the only copy of the rows */
    struct hps_arena *scratch; /* memory until the end of the turn */
    uint64_t begin_due_us;     /* when the offsets of STARTING partitions are requested */
    struct update_freeze freeze;
    struct update_link *link;
    struct update_topics *topics;
    struct update_batch *batch;
    struct update_pace *pace;
    struct update_counts *counts;
    struct update_metrics *metrics;
    struct update_share *share;
};

/* The operations of its consumer, which must be open. */
static inline const struct hps_consumer_ops *update_ops(const struct hps_update_stream *stream)
{
    return stream->consumer->ops;
}
/* The end (hps_clock_us) of the pause after a failure, if it begins now. */
static inline uint64_t update_backoff_until(const struct hps_update_stream *stream)
{
    return hps_clock_us() + (uint64_t)stream->source->failure_backoff_ms * 1000;
}
/* Whether it must stop or has ended. Any thread. */
static inline bool update_stops(const struct hps_update_stream *stream)
{
    return atomic_load(&stream->life) != UPDATE_LIVES;
}

/* Log an event of a stream, or of one of its partitions. The line has the fields model and version,
 * or also topic and partition, and then the fields after the message. Any thread. */
#define UPDATE_LOG(stream, level, message, ...)                           \
    HPS_LOG(level, "updates", message, HPS_STR("model", (stream)->model), \
            HPS_I64("version", (stream)->number) __VA_OPT__(, ) __VA_ARGS__)
#define UPDATE_LOG_PARTITION(stream, partition, level, message, ...)         \
    UPDATE_LOG(stream, level, message, HPS_STR("topic", (partition)->topic), \
               HPS_I64("partition", (partition)->number) __VA_OPT__(, ) __VA_ARGS__)

/* The loop over the partitions of a stream, in order of their tags. Its body must not add a
 * partition. */
#define UPDATE_EACH(stream, partition)                              \
    for (struct update_partition *partition = (stream)->partitions; \
         partition != update_partitions_end(stream); partition++)
static inline struct update_partition *update_partitions_end(const struct hps_update_stream *stream)
{
    return stream->n_partitions == 0 ? stream->partitions
                                     : stream->partitions + stream->n_partitions;
}

/* NULL: no list had it, and it has no stored position. The stream owns the result, which moves when
 * a partition is added. */
struct update_partition *update_find_partition(struct hps_update_stream *stream, const char *topic,
                                               int32_t number);
/* Add a partition in the phase STARTING. NULL: no memory. Owner as above. */
struct update_partition *update_add_partition(struct hps_update_stream *stream, const char *topic,
                                              int32_t number, const struct hps_update_route *route);
/* Write a time as "2026-11-28T08:30:00Z". Any thread. */
void update_time_text(int64_t unix_ms, char *out_text, size_t size);

#endif
