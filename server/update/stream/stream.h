/* SPDX-License-Identifier: Apache-2.0
 *
 * The turn of a stream: commands, lists of topics, starts of partitions, a poll into the batch,
 * as-of, apply, and the view. Thread `update`, unless stated otherwise. Threads and locks are
 * described in partition/partition.h.
 */
#ifndef HPS_SERVER_UPDATE_STREAM_STREAM_H
#define HPS_SERVER_UPDATE_STREAM_STREAM_H

#include "server/update/sink/sink.h"
#include "server/update/stream/command.h"

/* A refresh asks the log for its topics and ends, for all callers that wait for it. By the lock of
 * the board, unless stated otherwise. */
struct update_refresh {
    uint64_t asked_us; /* the newest request, hps_clock_us */
    uint64_t done_us;  /* when the last refresh began that has ended */
    struct hps_error error;
    uint64_t begun_us; /* thread `update`: when the current refresh began; 0: there is no refresh */
    int64_t begun_ms;  /* thread `update`: the same by hps_clock_forward_ms */
    uint64_t rest_until_us; /* waits request no refresh before */
};

/* The memory of the view; by the lock of the board. */
struct update_shown {
    struct hps_partition_view *partitions;
    uint32_t capacity;
    struct hps_rejected_view rejected[HPS_REJECTED_VIEWS_MAX]; /* oldest first */
    uint32_t n_rejected;
    uint64_t frozen_by; /* update_freeze.by, as the view shows it */
};

/* ---- life.c ---------------------------------------------------------------------------------- */

/* Creates a stream that pins `version`. Free it with update_stream_free after update_stream_close,
 * which also removes the pin. NULL: no memory. The thread that adds the version. */
struct hps_update_stream *update_stream_new(struct update_common *common,
                                            struct hps_version *version, uint64_t n_switches);
/* The stream is closed, and has no users. */
void update_stream_free(struct hps_update_stream *stream);
/* Wakes the stream's thread, so that it takes the requests of other threads. The lock of the board
 * is held. Any thread. */
void update_wake(struct hps_update_stream *stream);
/* Creates the members that the thread owns, and reads the stored positions. The first turn opens
 * the consumer. Fails with NO_MEMORY, or with an error of the store; then call update_stream_close.
 * The thread that adds the version. */
hps_status update_stream_open(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
void update_stream_close(struct hps_update_stream *stream);
/* Asserts that `to` may follow, and sets it. Any thread requests UPDATE_STOPS. */
void update_life_set(struct hps_update_stream *stream, enum update_life to);

/* ---- turn.c ---------------------------------------------------------------------------------- */

/* One turn. It waits at most poll_ms for records, besides requests to the log and to stores. */
void update_stream_turn(struct hps_update_stream *stream, uint32_t poll_ms);

/* ---- start.c --------------------------------------------------------------------------------- */

/* Reads the stored positions of partitions, whether the version is frozen, and since when its files
 * lack updates. Fails with NO_MEMORY, or with an error of the store or of a stored format. */
hps_status update_read_positions(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
/* Partitions that other versions of the model read. The log may hide their topics; a version that
 * starts without them would claim to be fresh. */
struct update_others {
    struct hps_update_stream *stream;
    hps_status status; /* NO_MEMORY */
};
/* Adds the partitions of a view; ctx: struct update_others, zero except for the stream. They are
 * stored with the first batch, so that a restart without the other versions knows them. The thread
 * that adds the version. */
void update_add_others(void *ctx, const struct hps_stream_view *view);
/* Asks for the offsets of STARTING partitions, and starts the partitions. No effect before topics
 * were listed, and while the log does not answer. */
void update_start_partitions(struct hps_update_stream *stream);
/* Unassigns stopped partitions. The records of the last poll become invalid. */
void update_unassign_stopped(struct hps_update_stream *stream);
typedef bool (*update_wants_fn)(const void *ctx, const struct update_partition *partition);
/* Asks for the offsets of the partitions for which wants(ctx, ...) is true. Returns them, until the
 * end of the turn: [n_partitions] by tag; the topic of the other partitions is NULL. NULL:
 * NO_MEMORY. time_ms: for hps_consumer_offsets.at_time; -1: none. */
struct hps_consumer_offsets *update_ask_offsets(struct hps_update_stream *stream,
                                                update_wants_fn wants, const void *ctx,
                                                int64_t time_ms, struct hps_error *err);
/* The time (Unix ms) by which a partition without a position starts, if the files of the version
 * are of files_ms; -1: by no time. Any thread. */
int64_t update_start_time_ms(const struct hps_config_update_source *source, int64_t files_ms);

/* ---- command.c ------------------------------------------------------------------------------- */

/* Adds a call to the queue of the stream. False: too many calls wait. Any thread. */
bool update_call_add(struct hps_update_stream *stream, struct hps_update_work *work) HPS_MUST_CHECK;
/* Takes the oldest call out of the queue. NULL: no call waits. */
struct hps_update_work *update_call_take(struct hps_update_stream *stream);
/* Carries out a command; sets n_changed and error, and adds to n and n_partitions. */
void update_run_command(struct hps_update_stream *stream, struct hps_update_work *work);
/* One step of a refresh, if it was requested. Returns how long this turn may wait for records: 0 if
 * the refresh has ended, since its callers wait for the end of the turn; else at most poll_ms. */
uint32_t update_refresh_turn(struct hps_update_stream *stream, uint32_t poll_ms);

/* ---- show.c ---------------------------------------------------------------------------------- */

/* Copies the state of the stream into its view. */
void update_stream_show(struct hps_update_stream *stream);
/* Updates the view between turns, since the thread may wait for the log or for a store. Sets
 * whether the version is active and frozen, and withdraws claims that have become too old. The
 * state of partitions stays. The lock of the board is held; any thread. */
void update_view_now(struct hps_update_stream *stream);
/* Sets the metrics of an active version. ctx: struct hps_metrics. Any thread. */
void update_show_gauges(void *ctx, const struct hps_stream_view *view);
/* Adds a record that was rejected to the view, for calls that wait for it. reason: static. */
void update_show_rejected(struct hps_update_stream *stream,
                          const struct update_partition *partition, int64_t offset,
                          const char *reason, const char *text);

/* ---- sane.c ---------------------------------------------------------------------------------- */

/* Asserts the invariants of a stream between two turns. */
void update_stream_sane(const struct hps_update_stream *stream);

#endif
