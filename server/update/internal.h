/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the updater share, by file:
 *
 *     updates.c    streams, their threads, views, commands on their way to them
 *     state.c      phases, and what holds between two turns: state.h
 *     stream.c     the turn of a stream's thread: records and events of a poll
 *     decode.c     records into the batch at hand: decode.h
 *     keys.c       keys in another encoding than hpsd reads: keys.h
 *     position.c   a position as it is stored: position.h
 *     topics.c     which topics there are, and whether the log answers
 *     begin.c      where partitions begin, and gaps
 *     proof.c      what leaders have proved
 *     apply.c      the batch at hand, the rate limit, dead letters, commits
 *     command.c    what operators ask for
 *     show.c       what others see
 *     waits.c      calls that wait for updates
 *     lag.c        whether a version has the updates of the active one
 *     share.c      a tier that is shared with other daemons: where a version is there
 *     replay.c     ... how shards that lag catch up
 */
#ifndef HPS_SERVER_UPDATE_INTERNAL_H
#define HPS_SERVER_UPDATE_INTERNAL_H

#include "server/update/state.h"

/* When an update happened, and who says so. */
struct update_time {
    int64_t ms;
    bool appended;
};

struct hps_updater {
    struct hps_updater_options options;
    atomic_bool nan_allowed;
    _Atomic uint64_t rows_per_s_max;
    uint64_t instance;                   /* of this start */
    _Atomic uint64_t n_rejected_numbers; /* given to records that were rejected */
    struct hps_lock lock;                /* the next ones */
    struct hps_update_stream *streams;
    bool stopped;
    struct hps_lock waits_lock;        /* the next ones, and what is the updater's of each waiter */
    struct hps_update_waiter *waiters; /* n_waiters */
    uint32_t n_waiters;
    bool waits_closed;
};

/* What its consumer can do; there is one. */
static inline const struct hps_consumer_ops *update_ops(const struct hps_update_stream *stream)
{
    return stream->consumer->ops;
}

/* ---- updates.c; the thread that adds the version --------------------------------------------- */

/* Takes a pin. Not in the list yet. NULL: no memory. */
struct hps_update_stream *update_stream_new(struct hps_updater *updater,
                                            struct hps_version *version, uint64_t n_switches);

/* The stream of a version that takes updates, or NULL. The updater's lock held. */
struct hps_update_stream *update_stream_find(struct hps_updater *updater, const char *model,
                                             int64_t number);

/* Have its thread look at what was asked of it. The stream's lock held. */
void update_wake(struct hps_update_stream *stream);

/* Write a time as "2026-11-28T08:30:00Z". Any thread. */
void update_time_text(int64_t unix_ms, char *out_text, size_t size);

/* ---- waits.c --------------------------------------------------------------------------------- */

/* Show the view to those who wait. Thread `update`. */
void update_waits_look(struct hps_update_stream *stream);
/* The stream ends: so do they. */
void update_waits_end(struct hps_update_stream *stream);

/* ---- stream.c; thread `update`, or a test in its place --------------------------------------- */

enum {
    UPDATE_LOG_TIMEOUT_MS = 3000, /* of a question to the log */
    UPDATE_LEADER_SILENT_US = HPS_LEADER_SILENT_US
};

/* All that the thread owns but the consumer, which the first turn opens. */
hps_status update_stream_open(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* One turn: commands, topics, beginnings, one poll of at most poll_ms, what came of it. */
void update_stream_turn(struct hps_update_stream *stream, uint32_t poll_ms);
void update_stream_close(struct hps_update_stream *stream);
/* The newest event time that is applied; of a clock that is ahead of ours: none. */
void update_note_event_time(struct hps_update_stream *stream, int64_t event_time_ms);
/* When the back-off is over that begins now. */
uint64_t update_backoff_until(const struct hps_update_stream *stream);
/* Nothing is read or applied until then. */
void update_retry_later(struct hps_update_stream *stream);
/* A record, with the headers that this version looks at. */
struct hps_update_bytes update_bytes(const struct hps_update_stream *stream,
                                     const struct hps_consumer_ops *ops,
                                     const struct hps_consumer_record *record);

/* ---- apply.c; the same thread ---------------------------------------------------------------- */

/* Apply the batch at hand, rows or not. */
hps_status update_stream_apply(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* ... if there is something to be stored; what cannot be applied now waits, and is tried again. */
void update_apply_or_hold(struct hps_update_stream *stream);
/* Keep the current batch, which failed with `status`, and retry it. */
void update_hold(struct hps_update_stream *stream, hps_status status, const struct hps_error *err);
/* Count records that were rejected, once their batch is applied. reason: static. */
void update_count_rejected(struct hps_update_stream *stream, const char *reason, uint64_t n);
/* Send a copy of a rejected record to the dead-letter topic, if there is one. */
void update_send_dead_letter(struct hps_update_stream *stream,
                             const struct hps_consumer_record *record, const char *reason);
/* Drop the current batch, which must not be half-applied; its records are read again. keeps_gaps:
 * partitions with a gap stay there, for a command to move them. */
void update_stream_abandon(struct hps_update_stream *stream, bool keeps_gaps);
/* When the rows that were applied have had their share of time, by the limit that holds now. */
uint64_t update_rate_due_us(const struct hps_update_stream *stream);
/* Tell the log's tools what was applied a while ago. */
void update_commit_due(struct hps_update_stream *stream);

/* ---- topics.c; the same thread --------------------------------------------------------------- */

/* Ask for topics; add what is new. */
void update_list_topics(struct hps_update_stream *stream);
/* ... with the next turn; where the last list was not answered, after the pause that goes with it.
 */
void update_list_soon(struct hps_update_stream *stream);
/* The log was away: forget which partitions its lists lacked. */
void update_forget_missing(struct hps_update_stream *stream);
/* The log answers: log this if its outage was logged. */
void update_tell_reachable(struct hps_update_stream *stream);
/* UNAVAILABLE, and why the log does not answer. */
hps_status update_unreachable(const struct hps_update_stream *stream, struct hps_error *err);

/* ---- begin.c; the same thread ---------------------------------------------------------------- */

/* NULL: it has not been listed, nor stored. */
struct update_partition *update_find_partition(struct hps_update_stream *stream, const char *topic,
                                               int32_t number);
/* The new partition STARTS. NULL: no memory. */
struct update_partition *update_add_partition(struct hps_update_stream *stream, const char *topic,
                                              int32_t number, const struct hps_update_route *route);
/* Read what is stored: partitions, whether the version is frozen, since when the files lack
 * updates. Add and store the partitions that other versions of the model read, as the log may hide
 * some of them. */
hps_status update_read_positions(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* A partition of another version that the log does not have: nothing of it is missing. */
static inline bool update_is_absent(const struct update_partition *partition)
{
    return partition->other && partition->phase == UPDATE_GONE;
}
/* Decide where STARTING partitions begin, and assign them. Does nothing before topics were listed.
 * The log is asked for a partition that is not listed by name: it is GONE, or FAILED if refused. */
void update_begin(struct hps_update_stream *stream);
/* Is this the record that was the last one? On the first record of a partition that CHECKS;
 * false: the record is not to be applied, being that one, or as there is a gap. */
bool update_check_first(struct hps_update_stream *stream, struct update_partition *partition,
                        const struct hps_consumer_record *record);
/* All that the log has was delivered, and the last record was not among it. */
void update_check_caught_up(struct hps_update_stream *stream, struct update_partition *partition);
void update_gap(struct hps_update_stream *stream, struct update_partition *partition,
                const char *fmt, ...) HPS_PRINTF(3, 4);
/* The partition is read no more; `phase` is none that reads. GAP, OTHER, GONE and FAILED are
 * logged. */
void update_stop_partition(struct hps_update_stream *stream, struct update_partition *partition,
                           enum update_phase phase, const char *reason);
/* Have it read from `offset`. phase: RUNS; CHECKS, if the record there is to be the last one. */
void update_run_from(struct hps_update_stream *stream, struct update_partition *partition,
                     int64_t offset, enum update_phase phase);
/* The partition runs: log this if its stop was logged. */
void update_tell_running(const struct hps_update_stream *stream,
                         struct update_partition *partition);
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
                      const char *fmt, ...) HPS_PRINTF(3, 4);
/* The consumer is another one. */
void update_forget_words(struct hps_update_stream *stream);
bool update_leader_silent(const struct update_partition *partition);
/* Until then (Unix ms) the partition counts as one of the topic that was read; later it may be
 * another's. INT64_MAX: nothing was read yet, or it is stopped where nobody asks (a gap, failed).
 */
int64_t update_same_until_ms(const struct hps_update_stream *stream,
                             const struct update_partition *partition);
/* Has the log written tombstones and removed them again since as-of? Their keys would stay for
 * ever. high: where the partition ends. */
bool update_lost_tombstones(const struct update_partition *partition, int64_t high);
void update_gap_tombstones(struct hps_update_stream *stream, struct update_partition *partition);

/* ---- command.c; the same thread -------------------------------------------------------------- */

/* Go on from there; what was before is forgotten. Stored by the apply that follows. */
void update_move_to(struct hps_update_stream *stream, struct update_partition *partition,
                    int64_t offset);
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
/* update_view_age, whether its version is active, and frozen, be it at its next turn. By the
 * stream's lock; any thread. */
void update_view_now(struct hps_update_stream *stream);
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
/* The id of the partition in a shared tier. */
uint64_t update_log_partition(const struct update_partition *partition,
                              const struct hps_position *at);
/* Between which positions the batch at hand lies. spans: [n_partitions], part_spans: [n_parts] */
uint32_t update_spans(struct hps_update_stream *stream, const struct hps_update_part *parts,
                      uint32_t n_parts, struct hps_log_span *spans, uint32_t *part_spans);
/* Where STARTING partitions begin of a version that has its rows in a shared tier alone; `starts`
 * [n_partitions] by tag: where those begin that are new, -1: not asked. False: not known yet. */
bool update_adopt(struct hps_update_stream *stream, const int64_t *starts);
/* Ask a shared tier above a store how far it is in STARTING partitions that are new here. */
void update_ask_shared(struct hps_update_stream *stream);

/* ---- replay.c; the same thread --------------------------------------------------------------- */

/* Leave the tier alone, or go back to it, by what the batches up to now have passed over. */
void update_share_note_apart(struct hps_update_stream *stream);
/* Count what batches have met; one step of what is to be done about it. */
void update_share_turn(struct hps_update_stream *stream, uint32_t poll_ms);
void update_share_close(struct hps_update_stream *stream);

#endif
