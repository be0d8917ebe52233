/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of the updater: what a stream and its partitions are made of, the phases that they
 * are in, which phase may follow which, and what holds of all of it when a turn of the stream's
 * thread has ended. A phase changes by its function here and nowhere else; each asserts that the
 * step is legal.
 *
 *     partition  STARTS ─▶ CHECKS ─▶ RUNS ─▶ STARTS  after an outage; another cluster; not listed
 *                   │         │        ├──▶ PAUSED   by the operator, until resumed
 *                   │         │        ├──▶ BLOCKED  frozen, where the only copy is shared
 *                   └─────────┴────────┴──▶ GAP | OTHER | GONE | FAILED  logged; nothing is applied
 *     link       CLOSED ─▶ SILENT ─▶ UP ◀─▶ DOWN ◀─▶ PARTIAL
 *     topics     UNKNOWN ─▶ NONE ─▶ LISTED
 *     batch      OPEN ◀─▶ HELD
 *     shared     NONE | LEVEL ◀─▶ BEHIND ◀─▶ REPLAYS, APART
 *     life       LIVES ─▶ STOPS ─▶ ENDED
 */
#ifndef HPS_SERVER_UPDATE_STATE_H
#define HPS_SERVER_UPDATE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/worker.h"
#include "server/update/decode.h"
#include "server/update/keys.h"
#include "server/update/position.h"
#include "server/update/updates.h"

/* ---- a partition ----------------------------------------------------------------------------- */

/* What a partition does. Operators see less of it: update_partition_state. */
enum update_phase {
    UPDATE_STARTS,  /* its position is to be compared with the log, then it is assigned */
    UPDATE_CHECKS,  /* assigned; the first record must be the last one that was read before */
    UPDATE_RUNS,    /* assigned; records go into the batch at hand */
    UPDATE_PAUSED,  /* by the operator */
    UPDATE_BLOCKED, /* its version is frozen and has its only copy in a shared tier: it waits before
                       the first record that it would pass over */
    UPDATE_GAP,     /* records between its position and what the log has are gone */
    UPDATE_OTHER,   /* a gap, too: another topic goes by the name, or the log was truncated */
    UPDATE_GONE,    /* the log has no such topic or partition */
    UPDATE_FAILED,  /* the log cannot, or may not, give its records */
    UPDATE_PHASES
};

/* Where its position comes from. */
enum update_basis {
    UPDATE_NOWHERE,  /* it has none yet: `applied` says nothing */
    UPDATE_ADOPTED,  /* a shared tier had it; to be stored with the next batch */
    UPDATE_PUBLISHED /* it is stored, and what look-ups are told */
};

/* Whether the topic is the one that was read: proof.c. */
enum update_sameness {
    UPDATE_PROVED,   /* it was at `at_ms`, and counts as that for a while: update_same_until_ms */
    UPDATE_UNPROVED, /* it may be another one by now; the witness is asked for */
    UPDATE_LEARNS    /* nothing tells yet: the record before the next one is to be the witness */
};

/* That a leader, asked at that time, said where its partition ended. */
struct update_end {
    int64_t high;
    int64_t asked_ms; /* hps_clock_forward_ms, as all times of proofs and identities */
};
enum { UPDATE_ENDS_MAX = 16 };

/* How fast something grows, over the last seconds. */
struct update_rate {
    uint64_t since_us; /* 0: not counted yet */
    uint64_t n;        /* then */
    double per_s;
};

/* What the log's list of topics says of a partition. */
struct update_listed {
    bool there;     /* it has it */
    bool was_there; /* ... the list before that one had, too */
    bool initial;   /* it was in the first list, of a version without any position */
    bool gone;      /* lists of a connected log have lacked it for 3 s */
    /* hps_clock_us of the first of these lists; 0: the last list has it. */
    uint64_t missing_us;
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* "": not known */
    enum hps_compaction compaction;
    int64_t delete_retention_ms; /* -1: not known */
    int64_t kept_ms;             /* records that are younger are all there; 0: not known */
    enum hps_record_time time_of;
};

/* What the batch at hand has of a partition. */
struct update_pending {
    bool dirty;       /* `read` is ahead of `applied` */
    bool moved;       /* by a command: `read` does not follow `applied` */
    bool passed_over; /* a record was passed over, as the version is frozen */
    uint32_t span;    /* of the batch that is being made: share.c */
};

/* What its leader has proved: proof.c. */
struct update_proof {
    struct hps_watch *watch; /* of the consumer that there is; NULL: not yet */
    struct hps_leader_response word;
    int64_t heard_ms; /* when it was asked what it said last, by whatever consumer; 0: never */
    struct update_end ends[UPDATE_ENDS_MAX]; /* not read up to yet, oldest first */
    uint32_t n_ends;
    int64_t as_of_ms;  /* every update logged before is published; 0: not known */
    int64_t seen_ms;   /* every update logged before was read, applied or not; 0: not known */
    int64_t seen_next; /* `read.next` as that was found */
};

/* Whether the topic is the one that was read, and the question for the witness. */
struct update_identity {
    enum update_sameness state;
    int64_t at_ms;                /* when it was last known to be the same; 0: not known */
    struct hps_witness candidate; /* the next witness, if this one is still there */
    bool asked;                   /* the witness was asked for, and has not been judged */
    int64_t asked_ms;             /* ... then */
    uint64_t asked_us;            /* the same moment, hps_clock_us */
    int64_t asked_offset;
    uint64_t none_us;       /* since then nothing is found from it on; 0: not so */
    uint64_t none_again_us; /* when it is asked for again */
};

/* Shards of a shared tier that lag, and the replay that they catch up by: replay.c. */
struct update_replay {
    int64_t from; /* up to there they have caught up; -1: they do not lag */
    int64_t next; /* ... with the batch at hand */
    bool passed;  /* records behind it were read before they were applied */
};

/* Of a stream, by its tag; never removed. Thread `update`. */
struct update_partition {
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    struct hps_update_route route;

    enum update_phase phase;
    bool other;        /* read by another version; this one has not seen it in the log */
    bool paused;       /* by the operator; stored once `applied` says so, too */
    bool leave;        /* it was stopped: to be unassigned */
    bool stop_logged;  /* at level error: it stopped by itself, and has not run since */
    bool only_deletes; /* GAP: only deletes may be lost; all other records are still to be read */
    char reason[200];
    char note[200]; /* what is to be known of it while it runs */

    enum update_basis basis;
    struct hps_position applied;                /* published, also in the store */
    struct hps_position read;                   /* as the batch at hand will leave it */
    const struct hps_consumer_record *unhashed; /* read.last, until the poll ends; NULL: hashed */
    struct update_pending pending;
    int64_t skipped_end; /* up to there, at most, records behind applied.skipped were; 0 */

    struct update_listed listed;
    int64_t low;  /* first record that the log had as it started */
    int64_t high; /* as its leader said last; -1: not known */
    struct update_proof proof;
    struct update_identity same;

    int64_t to_commit; /* -1: nothing; told to the log once it is old enough */
    int64_t committed;
    bool shared_asked; /* of a shared tier that is the lowest one */
    int64_t shared_at; /* of one above a store, before the log was asked; 0: not known */
    struct update_replay replay;

    bool told_form;     /* records that compaction does not understand were reported */
    uint64_t n_records; /* read, since it was added */
    struct update_rate rate;
};

/* What operators see of a phase. */
enum hps_partition_state update_partition_state(enum update_phase phase);

/* CHECKS or RUNS: it is assigned. */
static inline bool update_reads(const struct update_partition *partition)
{
    return partition->phase == UPDATE_CHECKS || partition->phase == UPDATE_RUNS;
}
static inline bool update_has_gap(const struct update_partition *partition)
{
    return partition->phase == UPDATE_GAP || partition->phase == UPDATE_OTHER;
}
static inline bool update_is_published(const struct update_partition *partition)
{
    return partition->basis == UPDATE_PUBLISHED;
}
/* The topic may be another one than was read. */
static inline bool update_is_unproved(const struct update_partition *partition)
{
    return partition->same.state != UPDATE_PROVED;
}

/* Assert that `to` may follow, and go there. What goes with it is the caller's. */
void update_phase_set(struct update_partition *partition, enum update_phase to);

/* ---- a stream -------------------------------------------------------------------------------- */

/* Of the thread. Any thread stops it; only it ends. */
enum update_life { UPDATE_LIVES, UPDATE_STOPS, UPDATE_ENDED };

/* The log, as the consumer reaches it. */
enum update_link_phase {
    UPDATE_LINK_CLOSED, /* there is no consumer */
    UPDATE_LINK_SILENT, /* it has no answer: none yet, or not to the last list of topics */
    UPDATE_LINK_UP,
    UPDATE_LINK_DOWN,   /* the log said that it is unreachable: nothing is asked until it is back */
    UPDATE_LINK_PARTIAL /* ... but a list of topics was answered since, by another connection */
};

enum update_topics_phase {
    UPDATE_TOPICS_UNKNOWN, /* none was listed yet */
    UPDATE_TOPICS_NONE,    /* the model has none, which was logged */
    UPDATE_TOPICS_LISTED
};

/* A tier that is shared with other daemons: share.c. */
enum update_share_phase {
    UPDATE_SHARE_NONE,    /* there is none */
    UPDATE_SHARE_LEVEL,   /* no shard of it lags, for all that is known */
    UPDATE_SHARE_BEHIND,  /* some do: to be looked at when that is due */
    UPDATE_SHARE_REPLAYS, /* a second consumer replays the log to them */
    UPDATE_SHARE_APART    /* the version has passed over records that others may have: it leaves the
                             tier alone */
};

/* A command on its way to a stream; of who waits. */
struct update_call {
    const struct hps_update_command *command;
    bool done;
    uint32_t n; /* partitions that it fits */
    uint32_t n_changed;
    struct hps_error error;
};

/* Asking the log where it is, for all who want to know at once. */
struct update_refresh {
    uint64_t asked_us; /* when last, by hps_clock_us; by the stream's lock, as the next three */
    uint64_t done_us;  /* when the one began that has ended last */
    uint32_t n;        /* whose leaders had answered */
    struct hps_error error;
    uint64_t begun_us;      /* thread `update`: when the one under way began; 0: none is */
    uint64_t rest_until_us; /* by the stream's lock: waits have none begin before */
};

/* What the view is made in; by the stream's lock. */
struct update_shown {
    struct hps_partition_view *partitions;
    uint32_t capacity;
    struct hps_rejected_view rejected[HPS_REJECTED_VIEWS_MAX]; /* oldest first */
    uint32_t n_rejected;
    uint64_t frozen_by; /* update_freeze.by */
};

struct update_metrics {
    struct hps_metric *records, *batches, *freshness, *append_freshness, *clock_ahead, *compacted,
        *throttled, *letters_lost;
    struct hps_metric *gaps, *failed, *replayed, *resets; /* of a shared tier */
};

struct update_link {
    enum update_link_phase phase;
    bool outage_logged; /* and not yet that the log answers again */
    char text[200];     /* why the log does not answer, as last heard; "": nothing */
};

struct update_topics {
    enum update_topics_phase phase;
    bool failed;       /* the last list was not answered: it is asked for again after a pause */
    bool fresh;        /* no position was stored when the version was added */
    int64_t listed_ms; /* when the last list was asked for, hps_clock_forward_ms */
    int64_t start_ms;  /* what the files may lack since; 0: not known */
    uint64_t due_us;
    uint64_t begin_due_us; /* when partitions that start are to be looked at */
    char cluster[HPS_CLUSTER_BYTES_MAX];
};

/* Copies of rejected records for the dead-letter topic. */
struct update_dead_letters {
    bool sent;          /* some were, since the last flush */
    bool failing;       /* the topic did not take them: batches no longer wait for it */
    uint64_t waited_us; /* for the letters of this batch */
};

/* Records of the batch that were rejected for the same reason. */
struct update_rejected {
    const char *reason; /* static */
    uint64_t n;
};
enum { UPDATE_REASONS_MAX = 16 };

/* Records read and not applied yet, and what the batches before came to. */
struct update_at_hand {
    struct hps_update_decoder *decoder;
    struct hps_update_keys *keys;
    struct hps_buf times; /* struct update_time */
    bool held;           /* it could not be applied: it is tried again, nothing is read meanwhile */
    char held_text[200]; /* why */
    uint64_t n_records;
    struct update_rejected rejected[UPDATE_REASONS_MAX]; /* [n_reasons] */
    uint32_t n_reasons;
    uint64_t rows_per_record; /* of the last batch; 0: not known */
    struct update_dead_letters dead_letters;
};

/* Records that name no version are passed over: the active version is of another lineage. */
struct update_freeze {
    bool frozen;
    bool unstored;             /* ... which the store does not know yet */
    uint64_t by;               /* the last switch of the model that `frozen` knows */
    _Atomic uint64_t asked_by; /* the last switch that freezes it. Any thread sets it */
};

/* When the next thing may be done, hps_clock_us. */
struct update_pace {
    uint64_t retry_due_us;  /* after a failure: nothing is read or applied before */
    uint64_t look_due_us;   /* the next look of those who wait for updates */
    uint64_t commit_due_us; /* of positions, for the log's tools */
    uint64_t charged_us;    /* since then n_rows were applied, which the rate limit counts */
    uint64_t n_rows;
};

struct update_counts {
    uint64_t n_records, n_rejected, n_keys; /* applied since it was added */
    struct update_rate record_rate, key_rate;
    int64_t event_time_ms; /* newest applied; 0: none */
};

/* A tier that is shared with other daemons: share.c, replay.c. */
struct update_share {
    enum update_share_phase phase;
    struct hps_space *space;       /* NULL: no tier is shared */
    bool alone;                    /* it is the lowest one: the rows have no other copy */
    bool place_due;                /* the tier is yet to learn where the version is */
    bool told;                     /* logged: it lags and cannot be mended */
    struct hps_consumer *consumer; /* REPLAYS */
    struct hps_update_decoder *decoder;
    uint64_t due_us;    /* when to look again */
    uint32_t wait_ms;   /* how long after that, if it has not helped */
    uint32_t n_replays; /* in a row that were not enough */
};

struct hps_update_stream {
    struct hps_update_stream *next; /* of the updater, by its lock, as the next one */
    unsigned n_users;               /* commands on their way: it stays in the list */
    struct hps_updater *updater;
    char *model, *lineage;
    int64_t number;
    atomic_bool active;
    atomic_int life; /* enum update_life */
    struct hps_worker thread;

    struct hps_lock lock; /* the next ones */
    struct hps_cond changed;
    struct update_call *call; /* NULL: none waits */
    struct update_refresh refresh;
    struct hps_consumer *wakeable; /* = consumer, while there is one */
    struct hps_stream_view view;
    struct update_shown shown;

    /* Thread `update` alone. */
    struct hps_version *version; /* pinned */
    int64_t ahead_ms;            /* the forward clock less the wall clock, last turn */
    struct hps_consumer *consumer;
    struct update_link link;
    struct update_metrics metrics;
    struct update_partition *partitions; /* by tag */
    uint32_t n_partitions, capacity;
    struct update_topics topics;
    struct update_at_hand batch;
    struct update_freeze freeze;
    struct update_pace pace;
    struct update_counts counts;
    struct update_share share;
};

/* The log answers questions: also while connections of the stream's consumer are down. */
static inline bool update_is_connected(const struct hps_update_stream *stream)
{
    return stream->link.phase == UPDATE_LINK_UP || stream->link.phase == UPDATE_LINK_PARTIAL;
}
/* The log said that it is unreachable, and not that it is back. */
static inline bool update_is_down(const struct hps_update_stream *stream)
{
    return stream->link.phase == UPDATE_LINK_DOWN || stream->link.phase == UPDATE_LINK_PARTIAL;
}
static inline bool update_is_listed(const struct hps_update_stream *stream)
{
    return stream->topics.phase != UPDATE_TOPICS_UNKNOWN;
}
/* Parts of the shared tier lag: they are not read from. */
static inline bool update_share_lags(const struct hps_update_stream *stream)
{
    return stream->share.phase == UPDATE_SHARE_BEHIND ||
           stream->share.phase == UPDATE_SHARE_REPLAYS;
}
/* Asked to stop, or at an end. Any thread. */
static inline bool update_stops(const struct hps_update_stream *stream)
{
    return atomic_load(&stream->life) != UPDATE_LIVES;
}
static inline bool update_has_ended(const struct hps_update_stream *stream)
{
    return atomic_load(&stream->life) == UPDATE_ENDED;
}

/* Each asserts that `to` may follow, and goes there; the same again is legal. */
void update_link_set(struct hps_update_stream *stream, enum update_link_phase to);
void update_topics_set(struct hps_update_stream *stream, enum update_topics_phase to);
void update_share_set(struct hps_update_stream *stream, enum update_share_phase to);
void update_life_set(struct hps_update_stream *stream, enum update_life to); /* any thread */

/* ---- what holds ------------------------------------------------------------------------------ */

/* Has this partition something to be stored? */
static inline bool update_unstored(const struct update_partition *partition)
{
    return partition->pending.dirty ||
           (update_is_published(partition) && partition->paused != partition->applied.paused);
}
/* Partitions, and whether it is frozen, that have something to be stored. */
uint32_t update_n_unstored(const struct hps_update_stream *stream);

/* Assert all that holds between two turns of the stream's thread. Thread `update`. */
void update_stream_sane(const struct hps_update_stream *stream);
/* ... of one of its partitions. */
void update_partition_sane(const struct hps_update_stream *stream,
                           const struct update_partition *partition);
/* ... of what others see. The stream's lock is held. */
void update_view_sane(const struct hps_update_stream *stream);

#endif
