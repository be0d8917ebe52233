/* SPDX-License-Identifier: Apache-2.0
 *
 * Where records go: they are decoded into the current batch, which is applied with the positions of
 * its partitions. Rejected records are copied to a dead-letter topic. Applied positions are
 * committed to the log. A tier that is shared with other daemons gets the same records. Functions
 * run on the stream's thread `update`, unless stated otherwise.
 */
#ifndef HPS_SERVER_UPDATE_SINK_SINK_H
#define HPS_SERVER_UPDATE_SINK_SINK_H

#include "base/buf.h"
#include "base/metric.h"
#include "server/update/sink/decode.h"
#include "server/update/sink/keys.h"
#include "server/update/source/source.h"

/* Copies of rejected records for the dead-letter topic. */
struct update_dead_letters {
    bool sent;          /* some were, since the last flush */
    bool failing;       /* the topic does not accept them: batches do not wait for it */
    uint64_t waited_us; /* for the letters of this batch */
};

/* Records of the batch that were rejected for the same reason. */
struct update_rejected {
    const char *reason; /* static */
    uint64_t n;
};
enum { UPDATE_REASONS_MAX = 16 };

/* The current batch: records that are read and not applied yet. */
struct update_batch {
    struct hps_update_decoder *decoder;
    struct hps_update_keys *keys;
    struct hps_buf times; /* int64_t: of its updates, Unix ms, at most now */
    bool held;            /* it could not be applied: it is retried, and no record is read */
    char held_text[200];  /* why it is held */
    uint64_t n_records;
    struct update_rejected rejected[UPDATE_REASONS_MAX]; /* [n_reasons] */
    uint32_t n_reasons;
    uint64_t rows_per_record; /* of the last batch; 0: not known */
    struct update_dead_letters dead_letters;
};

/* When the stream may act next: times of hps_clock_us. */
struct update_pace {
    uint64_t retry_due_us;  /* after a failure: no record is read or applied before */
    uint64_t commit_due_us; /* of positions, for the log's tools */
    int64_t ahead_ms;       /* the forward clock minus the wall clock, in the last turn */
    uint64_t charged_us;    /* the rate limit counts n_rows since then */
    uint64_t n_rows;
};

struct update_counts {
    uint64_t n_records, n_rejected, n_keys; /* applied since the version was added */
    struct update_rate record_rate, key_rate;
    int64_t event_time_ms; /* newest applied; 0: none */
};

struct update_metrics {
    struct hps_metric *records, *batches, *freshness, *compacted, *throttled, *letters_lost;
    struct hps_metric *gaps, *failed, *replayed, *resets; /* of a shared tier */
};

enum update_share_phase {
    UPDATE_SHARE_CURRENT, /* no shard is known to lag, or no tier is shared */
    UPDATE_SHARE_BEHIND,  /* shards lag: lookups do not read from them */
    UPDATE_SHARE_BYPASSED /* the version has skipped records that other daemons may have applied: it
                             neither reads nor writes the tier */
};

/* A tier that is shared with other daemons. */
struct update_share {
    enum update_share_phase phase;
    struct hps_space *space;            /* NULL: no tier is shared */
    bool positions_due;                 /* the tier must get the positions of the version */
    bool failure_logged;                /* it lags, and neither a replay nor a reset helps */
    struct hps_consumer *consumer;      /* of a replay to shards that lag; NULL: no replay */
    struct hps_update_decoder *decoder; /* likewise */
    uint64_t due_us;                    /* when to check the shards */
    uint32_t wait_ms;   /* delay of the check after that; doubles if a check does not help */
    uint32_t n_replays; /* in a row without success */
};

/* ---- apply.c --------------------------------------------------------------------------------- */

/* Apply the current batch, which may be empty, and store the records that update_n_unstored counts.
 * Errors as hps_update_apply. The batch is then unchanged, and may be half-applied
 * (hps_update_half_applied). */
hps_status update_stream_apply(struct hps_update_stream *stream, struct hps_error *err)
    HPS_MUST_CHECK;
typedef uint32_t (*update_spans_fn)(struct hps_update_stream *stream,
                                    struct hps_log_span *out_spans);
/* Make a batch of the decoder's rows, without positions. Its memory lives until the end of the
 * turn. NO_MEMORY. */
hps_status update_make_batch(struct hps_update_stream *stream, struct hps_update_decoder *decoder,
                             update_spans_fn make_spans, struct hps_update_batch *out_batch,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Send the dead letters, then apply the batch if there is something to store. On failure: hold. */
void update_apply_or_hold(struct hps_update_stream *stream);
/* Keep the current batch, which failed with `status`, and retry it. */
void update_hold(struct hps_update_stream *stream, hps_status status, const struct hps_error *err);
/* Count n > 0 records that were rejected; the metrics get them when their batch is applied. reason:
 * static. */
void update_count_rejected(struct hps_update_stream *stream, const char *reason, uint64_t n);
/* Send a copy of a rejected record to the dead-letter topic, if one is configured. */
void update_send_dead_letter(struct hps_update_stream *stream,
                             const struct hps_consumer_record *record, const char *reason);
/* Drop the current batch, which must not be half-applied; its records are read again. keeps_gaps:
 * partitions with a gap stay there, for a command to move them. */
void update_stream_abandon(struct hps_update_stream *stream, bool keeps_gaps);
/* When the current rate limit allows more rows, hps_clock_us; 0: there is no limit. */
uint64_t update_rate_due_us(const struct hps_update_stream *stream);
/* If a commit is due: commit the positions that were applied before the last one. The store has
 * synced them since. */
void update_commit_due(struct hps_update_stream *stream);

/* Note an event time that is applied. Ignored if it is in the future, since a producer's clock may
 * be ahead. */
void update_note_event_time(struct hps_update_stream *stream, int64_t event_time_ms);
/* Read and apply no record until a pause has passed. */
void update_retry_later(struct hps_update_stream *stream);
/* The number of records that must be stored: positions of partitions, partitions that only other
 * versions read, and whether the version is frozen. */
uint32_t update_n_unstored(const struct hps_update_stream *stream);

/* ---- share.c --------------------------------------------------------------------------------- */

/* Set the positions of the version in its shared tier, as the store has them; or have the tier
 * bypassed, if records were skipped. No effect if no tier is shared. As hps_updater_place. */
hps_status update_set_shared_positions(struct hps_version *version, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether the version must bypass the shared tier once the current batch is applied. */
bool update_bypasses_shared(const struct hps_update_stream *stream);
/* Make the spans of log records that the current batch has. out_spans: [n_partitions]. Returns
 * their number: 0 if no tier is shared. */
uint32_t update_spans(struct hps_update_stream *stream, struct hps_log_span *out_spans);
/* Take over positions of a shared tier with the only copy of the rows, for partitions in the phase
 * STARTING. starts: [n_partitions] where each one starts without such a position; -1: leave it.
 * False: the tier did not answer, or there is no memory, which is logged. */
bool update_adopt(struct hps_update_stream *stream, const int64_t *starts);
/* Set shared_at of each partition. If it is STARTING without a stored position: its position in a
 * shared tier above a store. Otherwise 0. */
void update_ask_shared(struct hps_update_stream *stream);

/* ---- replay.c -------------------------------------------------------------------------------- */

/* A batch was applied: bypass the tier, or use it again, if this changes update_bypasses_shared. */
void update_share_note_bypass(struct hps_update_stream *stream);
/* Take the tier's reports of applied batches, and do one step to bring shards that lag up to date.
 * poll_ms: how long a poll of a replay may wait. */
void update_share_turn(struct hps_update_stream *stream, uint32_t poll_ms);
/* End a replay, if there is one. */
void update_end_replay(struct hps_update_stream *stream);

#endif
