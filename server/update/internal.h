/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the updater share: updates.c (streams, views, commands on their way), stream.c
 * (the turn of a stream's thread), apply.c (the batch at hand), begin.c (where partitions begin,
 * and gaps), proof.c (what leaders have proved), command.c (what operators ask for), show.c (what
 * others see), share.c (a tier that is shared with other daemons).
 */
#ifndef HPS_SERVER_UPDATE_INTERNAL_H
#define HPS_SERVER_UPDATE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/lock.h"
#include "server/update/decode.h"
#include "server/update/position.h"
#include "server/update/updates.h"

/* That a leader, asked at that time, said where its partition ended. */
struct update_end {
    int64_t high;
    int64_t asked_ms; /* Unix ms */
};
enum { UPDATE_ENDS_MAX = 16 };

/* How fast something grows, over the last seconds. */
struct update_rate {
    uint64_t since_us; /* 0: not counted yet */
    uint64_t n;        /* then */
    double per_s;
};

/* Of a stream, by its tag; never removed. Thread `update`. */
struct update_partition {
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    struct hps_update_route route;
    enum hps_compaction compaction;
    int64_t delete_retention_ms;
    enum hps_partition_state state;
    bool known;          /* `applied` says something */
    bool checking;       /* the first record must be the last one that was read */
    bool dirty;          /* `read` is ahead of `applied`: the batch at hand has its records */
    bool there;          /* the log has listed it */
    bool was_there;      /* ... in the list before that one */
    bool leave;          /* it was stopped: to be unassigned */
    bool initial;        /* without a position, listed when its version was new */
    bool paused;         /* by the operator; stored once `applied` says so, too */
    bool told_form;      /* records that compaction does not understand were reported */
    bool passed_over;    /* a record of the batch at hand was, as the version is frozen */
    int64_t skipped_end; /* up to there, at most, records behind applied.skipped were; 0 */
    struct hps_position applied;                /* published, also in the store */
    struct hps_position read;                   /* as the batch at hand will leave it */
    const struct hps_consumer_record *unhashed; /* read.last, until the poll ends; NULL: hashed */
    int64_t accept;                             /* GAP: where an accept-gap goes on */
    bool other;                                 /* GAP: it is not the topic that was read */
    int64_t low;                                /* when it began */
    int64_t high;                               /* as its leader said last; -1: not known */
    /* What its leader has proved: proof.c. */
    struct hps_watch *watch; /* of the consumer that there is; NULL: not yet */
    struct hps_leader_word word;
    int64_t heard_ms; /* when it was asked what it said last, by whatever consumer; 0: never */
    struct update_end ends[UPDATE_ENDS_MAX]; /* not read up to yet, oldest first */
    uint32_t n_ends;
    int64_t as_of_ms;  /* every update logged before is published; 0: not known */
    int64_t seen_ms;   /* every update logged before was read, applied or not; 0: not known */
    int64_t seen_next; /* `read.next` as that was found */
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* as listed last; "": not known */
    bool recalling;                        /* the witness was asked for */
    int64_t recall_ms;                     /* ... then, Unix ms */
    int64_t recall_offset;
    uint64_t none_us;             /* since then nothing is found from it on; 0: not so */
    uint64_t none_again_us;       /* when it is asked for again */
    bool unproved;                /* it is not known yet that it is the topic that was read */
    bool learning;                /* that is to be the witness: what is there is not known yet */
    int64_t same_ms;              /* until then it is known that it was; 0: not known */
    struct hps_witness candidate; /* the next witness, if this one is still there */
    int64_t kept_ms;              /* records that are younger are all there; 0: not known */
    int64_t to_commit;            /* -1: nothing; told to the log once it is old enough */
    int64_t committed;
    bool moved;         /* by a command: `read` does not follow `applied` */
    bool asked;         /* of a shared tier that is the lowest one, */
    bool adopted;       /* where others have been before: `applied` says it */
    int64_t shared_at;  /* of one above a store, before the log was asked; 0: not known */
    uint32_t span;      /* of the batch that is being made */
    int64_t replay;     /* up to there a shared tier has been brought on; -1: it is not behind */
    int64_t replays;    /* ... with the batch at hand */
    bool replay_passed; /* records behind it were read before they were applied */
    uint64_t n_records; /* read, since it was added */
    struct update_rate rate;
    char reason[200];
    char note[200]; /* what is to be known of it while it runs */
};

/* A partition that another version of the model has, and that was not listed here:
 * unlisted.c.
 */
struct update_unlisted {
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t number;
    int64_t version;   /* that has it */
    bool seen;         /* it still has */
    bool early;        /* this one has not been fresh yet: it is missing until more is known */
    bool shown;        /* ... as a partition of this version */
    hps_status status; /* OK: it is there; NOT_FOUND: it is not, or not ours, for good; PERMISSION:
                          not ours to see; UNAVAILABLE: not known yet */
    uint64_t none_us;  /* since then the log says that it is not there; 0: it does not */
    int64_t there_ms;  /* when it was found to be there; 0: it was not */
};

/* Bringing on what is behind in a shared tier. */
struct update_repair {
    struct hps_consumer *consumer; /* NULL: nothing is applied again now */
    struct hps_update_decoder *decoder;
    uint64_t due_us;    /* when to look again */
    uint32_t wait_ms;   /* how long after that, if it has not helped */
    uint32_t n_replays; /* in a row that were not enough */
    bool behind;        /* as was last seen */
    bool told;
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
    uint64_t begun_us; /* thread `update`: when the one under way began; 0: none is */
};

struct update_metrics {
    struct hps_metric *records, *batches, *freshness, *append_freshness, *clock_ahead, *compacted,
        *throttled;
    struct hps_metric *gaps, *failed, *replayed, *resets; /* of a shared tier */
};

struct hps_update_stream {
    struct hps_update_stream *next; /* of the updater, by its lock, as the next one */
    unsigned n_users;               /* commands on their way: it stays in the list */
    struct hps_updater *updater;
    char *model, *lineage;
    int64_t number;
    atomic_bool active;
    atomic_bool stop;
    _Atomic uint64_t freeze_by; /* the last switch that freezes it; the thread takes it */
    atomic_bool ended;
    bool started;
    pthread_t thread;

    struct hps_lock lock; /* the next ones */
    struct hps_cond changed;
    struct update_call *call; /* NULL: none waits */
    struct update_refresh refresh;
    struct hps_consumer *wakeable; /* = consumer, while there is one */
    struct hps_stream_view view;
    struct hps_partition_view *view_partitions;
    uint32_t view_capacity;
    struct hps_rejected_view rejected[HPS_REJECTED_VIEWS_MAX]; /* oldest first */
    uint32_t n_rejected_views;

    /* Thread `update` alone. */
    struct hps_version *version; /* pinned */
    struct hps_consumer *consumer;
    struct hps_update_decoder *decoder;
    struct update_metrics metrics;
    struct update_partition *partitions; /* by tag */
    uint32_t n_partitions, capacity;
    struct update_unlisted *unlisted;
    uint32_t n_unlisted;
    uint64_t unlisted_due_us;
    char cluster[HPS_CLUSTER_BYTES_MAX];
    struct hps_space *shared; /* NULL: no tier is */
    bool shared_alone;        /* it is the lowest one */
    bool apart;               /* it is left alone */
    bool place_due;           /* it is to be told where the version is */
    struct update_repair repair;
    bool listed;       /* topics were told once */
    int64_t listed_ms; /* when they were asked for last, Unix ms */
    bool told_empty;   /* that there is no topic was logged */
    bool fresh;        /* no position was stored when it was added */
    bool frozen, frozen_dirty;
    uint64_t frozen_by; /* the last switch of the model that `frozen` knows */
    int64_t start_ms;   /* what the files may lack since; 0: not known */
    bool connected;
    bool away;           /* DOWN was told, and UP was not since */
    char away_text[200]; /* why not, as last heard; "": nothing */
    bool held;           /* the batch at hand waits: it could not be applied */
    bool lettered;       /* bad records were sent to the dead-letter topic since the last flush */
    hps_status letter_status; /* of the first that could not even be sent */
    uint32_t letter_tries;    /* flushes in a row that there is no sense in */
    char held_text[200];
    uint64_t topics_due_us, retry_due_us, commit_due_us, begin_due_us;
    uint64_t paid_us, n_rows_owed;          /* rows applied since then, to be paid for in time */
    struct hps_buf times;                   /* struct update_time of the batch at hand */
    uint64_t n_records, n_rejected, n_keys; /* applied */
    uint64_t batch_records, batch_rejected;
    uint64_t rows_per_record; /* of the last batch; 0: not known */
    struct update_rate record_rate, key_rate;
    int64_t event_time_ms;
};

/* When an update happened, and who says so. */
struct update_time {
    int64_t ms;
    bool appended;
};

struct hps_updater {
    struct hps_updater_options options;
    atomic_bool nan_allowed;
    _Atomic uint64_t rows_per_s_max;
    struct hps_lock lock; /* the next ones */
    struct hps_update_stream *streams;
    bool stopped;
};

/* ---- stream.c; thread `update`, or a test in its place --------------------------------------- */

enum {
    UPDATE_LOG_TIMEOUT_MS = 3000,             /* of a question to the log */
    UPDATE_LEADER_SILENT_US = 2 * 1000 * 1000 /* a leader without a word for longer is away */
};

/* Takes a pin. Not in the list yet. NULL: no memory. updates.c */
struct hps_update_stream *update_stream_new(struct hps_updater *updater,
                                            struct hps_version *version, uint64_t n_switches);
/* All that the thread owns but the consumer, which the first turn opens. */
hps_status update_stream_open(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* One turn: commands, topics, beginnings, one poll of at most poll_ms, what came of it. */
void update_stream_turn(struct hps_update_stream *stream, uint32_t poll_ms);
void update_stream_close(struct hps_update_stream *stream);
/* The newest event time that is applied; of a clock that is ahead of ours: none. */
void update_note_event_time(struct hps_update_stream *stream, int64_t event_time_ms);
/* Try again after the back-off. */
void update_retry_later(struct hps_update_stream *stream);

/* ---- apply.c; the same thread ---------------------------------------------------------------- */

/* Has this partition something to be stored? */
bool update_unstored(const struct update_partition *partition);
/* Apply the batch at hand, rows or not. */
hps_status update_stream_apply(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* ... if there is something to be stored; what cannot be applied now waits, and is tried again. */
void update_apply_or_hold(struct hps_update_stream *stream);
/* Forget the batch at hand; what it had is read again. */
void update_stream_abandon(struct hps_update_stream *stream);
/* When the rows that were applied have had their share of time, by the limit that holds now. */
uint64_t update_rate_due_us(const struct hps_update_stream *stream);
/* Tell the log's tools what was applied a while ago. */
void update_commit_due(struct hps_update_stream *stream);

/* ---- begin.c; the same thread ---------------------------------------------------------------- */

/* NULL: it has not been listed, nor stored. */
struct update_partition *update_find_partition(struct hps_update_stream *stream, const char *topic,
                                               int32_t number);
/* What is stored: partitions, whether it is frozen, since when the files lack updates. */
hps_status update_read_positions(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* Ask for topics; add what is new. */
void update_list_topics(struct hps_update_stream *stream);
/* UNAVAILABLE, and why the log does not answer. */
hps_status update_away(const struct hps_update_stream *stream, struct hps_error *err);
/* Decide where STARTING partitions begin, and assign them. */
void update_begin(struct hps_update_stream *stream);
/* Is this the record that was the last one? On the first record of a partition that is checking;
 * false: the record is not to be applied, being that one, or as there is a gap. */
bool update_check_first(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_record *record);
/* All that the log has was delivered, and the last record was not among it. */
void update_check_caught_up(struct hps_update_stream *stream, struct update_partition *partition);
void update_gap(struct hps_update_stream *stream, struct update_partition *partition,
                int64_t accept, const char *fmt, ...) HPS_PRINTF(4, 5);
/* Go on from there; what was before is forgotten. Stored by the apply that follows. */
void update_move_to(struct hps_update_stream *stream, struct update_partition *partition,
                    int64_t offset);
void update_stop_partition(struct hps_update_stream *stream, struct update_partition *partition,
                           enum hps_partition_state state, const char *reason);
/* Have it read from `offset`; `checking`: the first record is compared with the last one. */
void update_run_from(struct hps_update_stream *stream, struct update_partition *partition,
                     int64_t offset, bool checking);
/* Unassign what was stopped. Not while what the last poll brought is borrowed. */
void update_leave_stopped(struct hps_update_stream *stream);
typedef bool (*update_wants_fn)(const void *ctx, const struct update_partition *partition);
/* Ask for the offsets of those that are wanted. out_parts: in order of the partitions; hps_free. */
hps_status update_ask_offsets(struct hps_update_stream *stream, update_wants_fn wants,
                              const void *ctx, int64_t time_ms,
                              struct hps_consumer_offsets **out_parts, struct hps_error *err)
    HPS_MUST_CHECK;
/* What the topic that is read has besides its records, or the log itself, may be another one when
 * it is there again, and have grown past where we are: partitions of `topic` (NULL: all) that run
 * are compared before anything more is applied. */
void update_begin_anew(struct hps_update_stream *stream, const char *topic);
/* The time (Unix ms) whose first record a partition without a position begins at, of a version with
 * files of that time; -1: by no time. On any thread. */
int64_t update_start_time_ms(const struct hps_updater_options *options, int64_t files_ms);

/* ---- proof.c; the same thread ---------------------------------------------------------------- */

/* Take what leaders have said: the ends of partitions, and what became of witnesses. */
void update_hear(struct hps_update_stream *stream);
/* As-of of partitions that were read up to an end that their leader said. After a poll and
 * update_hear, before the batch is applied. */
void update_prove(struct hps_update_stream *stream);
/* Ask whether each partition that runs is still of the topic that was read. After the topics were
 * listed. */
void update_ask_identity(struct hps_update_stream *stream);
/* ... this one, before it may count as fresh: as it begins. listed: topics were listed just now, so
 * that ids are of now. False: it is another topic, a gap. */
bool update_identify(struct hps_update_stream *stream, struct update_partition *partition,
                     bool listed);
/* A gap as it is another topic, or log: what was claimed since it was last known to be the same was
 * not so. */
void update_gap_other(struct hps_update_stream *stream, struct update_partition *partition,
                      int64_t accept, const char *fmt, ...) HPS_PRINTF(4, 5);
/* The consumer is another one. */
void update_forget_words(struct hps_update_stream *stream);
bool update_leader_silent(const struct update_partition *partition);
/* Until then (Unix ms) the partition counts as one of the topic that was read; later it may be
 * another's. INT64_MAX: nothing was read yet, or it stands where nobody asks (a gap, failed). */
int64_t update_same_until_ms(const struct hps_update_stream *stream,
                             const struct update_partition *partition);
/* Has the log written tombstones and removed them again since as-of? Their keys would stay for
 * ever. high: where the partition ends. */
bool update_lost_tombstones(const struct update_partition *partition, int64_t high);
void update_gap_tombstones(struct hps_update_stream *stream, struct update_partition *partition);

/* ---- unlisted.c; the same thread ------------------------------------------------------------- */

/* Look at what other versions have, and at what the log says of it. */
void update_hear_unlisted(struct hps_update_stream *stream);
/* As a partition of this version, whose as-of is not known. False: it is not there, and none. */
bool update_show_unlisted(const struct update_unlisted *of, struct hps_partition_view *out_view);
/* Of those that turned out not to be there no series stays. After the view without them is shown.
 */
void update_forget_unlisted(struct hps_update_stream *stream);

/* ---- command.c; the same thread -------------------------------------------------------------- */

/* Not a REFRESH. */
void update_run_command(struct hps_update_stream *stream, struct update_call *call);
/* One step of a refresh that was asked for. False: none is under way any more. */
bool update_refresh_turn(struct hps_update_stream *stream);

/* ---- show.c; the same thread ----------------------------------------------------------------- */

/* Copy the view. */
void update_stream_show(struct hps_update_stream *stream);
/* Take back of the view what was known for a time that is over: its thread may wait for the log, or
 * for a store, all the while. The state stays as it was shown. By the stream's lock; any thread. */
void update_view_age(struct hps_update_stream *stream);
/* ctx: struct hps_metrics. Any thread. */
void update_show_gauges(void *ctx, const struct hps_stream_view *view);
/* No series stays of a partition that is read no more, or never was. Any thread. */
void update_forget_gauges(struct hps_metrics *metrics, const char *topic, int32_t partition);
/* A record that is in no row: for those who wait for it. reason: static. */
void update_show_rejected(struct hps_update_stream *stream, const char *topic, int32_t partition,
                          int64_t offset, const char *reason, const char *text);

/* ---- share.c; the same thread ---------------------------------------------------------------- */

/* Has the version passed over records, as the batch at hand leaves it? */
bool update_is_apart(const struct hps_update_stream *stream);
/* Between which positions the batch at hand lies. spans: [n_partitions], part_spans: [n_parts] */
uint32_t update_spans(struct hps_update_stream *stream, const struct hps_update_part *parts,
                      uint32_t n_parts, struct hps_log_span *spans, uint32_t *part_spans);
/* Where STARTING partitions begin of a version that has its rows in a shared tier alone; `starts`
 * [n_partitions] by tag: where those begin that are new, -1: not asked. False: not known yet. */
bool update_adopt(struct hps_update_stream *stream, const int64_t *starts);
/* Ask a shared tier above a store how far it is in STARTING partitions that are new here. */
void update_ask_shared(struct hps_update_stream *stream);
/* Count what batches have met; one step of what is to be done about it. */
void update_share_turn(struct hps_update_stream *stream, uint32_t poll_ms);
void update_share_close(struct hps_update_stream *stream);
/* A record, with the headers that this version looks at. stream.c */
struct hps_update_bytes update_bytes(const struct hps_update_stream *stream,
                                     const struct hps_consumer_ops *ops,
                                     const struct hps_consumer_record *record);

#endif
