/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of resident versions are kept fresh from a log of updates. Every version that is added gets
 * a *stream*: a thread `update` with a consumer of its own, from add to remove:
 *
 *     poll ─▶ decode ─▶ batch ─▶ hps_update_apply: rows, deletes and positions at once
 *       ▲                              │ EXHAUSTED, IO: the same batch again after a pause; nothing
 *       │                              ▼ is polled meanwhile
 *       └── commit, later ◀── freshness, lag, as-of
 *
 * What one partition is doing:
 *
 *     STARTING ──▶ RUNNING ──▶ GAP | GONE | FAILED      shown with a reason; nothing is applied
 *        ▲  └────────┬──▶ PAUSED (operator)  │
 *        └───────────┴──────────◀────────────┘  resume; seek; accept-gap; the topic is there again
 *
 * STARTING compares the stored position with the log: another cluster, records that are gone, or
 * another record where the last one was are a GAP, which only the operator ends. RUNNING partitions
 * are STARTING again after an outage, and when one of their topic is gone.
 *
 * Who owns what: the stream's thread alone touches its consumer, decoder, partitions and the pin of
 * its version; who asks gets a copy made after each turn, under the stream's lock; who gives a
 * command waits until the thread has carried it out. `lock` of the updater holds the list of
 * streams.
 *
 * A tier that is shared with other daemons holds what the log makes of the files (docs/redis.md).
 * Shards of it that are behind catch up by a second consumer of the stream, one poll of it between
 * two of the first: from the lowest position up to what is published; or are emptied, if the log no
 * longer has what they lack, or they lack too much. A version that has passed over records (a seek
 * forward, a gap, frozen) is not what others have, and leaves such a tier alone; a seek back to
 * them ends that.
 *
 * A version is *frozen* when one of another lineage is made the active one: records that name no
 * version are passed over from then on, those that name it are applied. A seek ends that. The
 * number of the switch that decided it is stored, too: after a crash between a switch and the
 * freezing a start freezes what was left.
 */
#ifndef HPS_SERVER_UPDATE_UPDATES_H
#define HPS_SERVER_UPDATE_UPDATES_H

#include "backends/update_log.h"
#include "base/metric.h"
#include "cache/update/update.h"
#include "config/manifest.h"
#include "server/update/position.h"

struct hps_updater;

/* Where a partition of a version begins that has no position, neither stored nor in a manifest. */
enum hps_update_start {
    HPS_UPDATE_START_FILES, /* the time of the version's oldest file, less the slack */
    HPS_UPDATE_START_EARLIEST,
    HPS_UPDATE_START_LATEST, /* a partition that is new later: its first record */
    HPS_UPDATE_START_TIME
};

struct hps_updater_options { /* borrowed for the life of the updater, but for `filters` */
    struct hps_update_log *log;
    struct hps_metrics *metrics;
    const char *group; /* of the advisory commits; NULL: none */
    const char *const *filters;
    uint32_t n_filters;
    const char *dead_letter_topic; /* NULL: bad records are not kept */
    enum hps_update_start start;
    int64_t start_time_ms; /* HPS_UPDATE_START_TIME */
    uint64_t start_slack_ms;
    uint32_t key_bytes; /* of HCTR records: 8 or 4 */
    bool nan_allowed;
    uint32_t rows_max;       /* of one batch, and one record more */
    uint64_t bytes_max;      /* likewise */
    uint64_t rows_per_s_max; /* of each stream; 0: as fast as it goes */
    uint32_t poll_ms;
    uint32_t topics_ms;  /* how often topics are looked for */
    uint32_t backoff_ms; /* after a failure */
    uint32_t commit_ms; /* how old a position is when it is committed: the log of the store has been
                           synced */
};

/* Compiles nothing, starts nothing. NO_MEMORY. */
hps_status hps_updater_new(const struct hps_updater_options *options,
                           struct hps_updater **out_updater, struct hps_error *err) HPS_MUST_CHECK;
/* End all streams and wait for their threads; adding does nothing from now on. NULL is legal, as in
 * all that follow. */
void hps_updater_stop(struct hps_updater *updater);
void hps_updater_free(struct hps_updater *updater); /* stops */

/* Store where the files of a new version end: its manifest's start positions, and the time of its
 * oldest file; and that no switch of its model up to now has frozen it. Before it is added, once,
 * also where there is no updater yet: on the caller's thread, which holds a pin. May block. */
hps_status hps_updater_seed(struct hps_version *version, const struct hps_manifest *manifest,
                            uint64_t oldest_file_ms, uint64_t n_switches, struct hps_error *err)
    HPS_MUST_CHECK;
/* A hash of where updates of files like these begin: of the positions of the manifest, and of the
 * time that partitions without one begin by. Versions whose hashes differ do not get the same rows
 * from the same log. 0: there is no updater. */
uint64_t hps_updater_start_hash(const struct hps_updater *updater,
                                const struct hps_manifest *manifest, uint64_t oldest_file_ms);
/* Where updates of files like these begin, as a sentence for people; false: there is no updater. */
bool hps_updater_start_text(const struct hps_updater *updater, const struct hps_manifest *manifest,
                            uint64_t oldest_file_ms, char *out_text, size_t size) HPS_MUST_CHECK;
/* Tell a tier that is shared with other daemons where the version is: after hps_update_open and the
 * seed, before it is served, also where there is no updater. On the caller's thread; does not wait
 * for the tier. */
hps_status hps_updater_place(struct hps_version *version, struct hps_error *err) HPS_MUST_CHECK;
/* Begin to apply updates. n_switches: of its model so far. Takes a pin, given back soon after the
 * remove. What fails is logged. */
void hps_updater_add(struct hps_updater *updater, struct hps_version *version, uint64_t n_switches);
/* Apply nothing more; does not wait for the batch under way. */
void hps_updater_remove(struct hps_updater *updater, const struct hps_version *version);
/* This version of the model is the active one now, by its switch number n_switches: versions
 * of another lineage that have heard of no later switch are frozen. Also once at each start. */
void hps_updater_activated(struct hps_updater *updater, const struct hps_version *version,
                           uint64_t n_switches);
/* Is version `number` fresh enough to become the model's active one? It is if no more than the
 * updates of the last lag_max_ms may be missing from it. Else its lag may not exceed that of the
 * active version by as much, and in no partition may the active one have read further. OK also of
 * one that takes no updates or is frozen.
 *
 * error   PRECONDITION: how far behind it is, and where; NO_MEMORY
 * thread  any
 */
hps_status hps_updater_check_lag(struct hps_updater *updater, const char *model, int64_t number,
                                 uint64_t lag_max_ms, struct hps_error *err) HPS_MUST_CHECK;
void hps_updater_nan_set(struct hps_updater *updater, bool nan_allowed);
void hps_updater_rate_set(struct hps_updater *updater, uint64_t rows_per_s_max);

/* ---- views ----------------------------------------------------------------------------------- */

enum hps_partition_state {
    HPS_PARTITION_STARTING,
    HPS_PARTITION_RUNNING,
    HPS_PARTITION_PAUSED,
    HPS_PARTITION_GAP,
    HPS_PARTITION_GONE,
    HPS_PARTITION_FAILED,
    /* What a RUNNING one is shown as while nothing of it becomes visible. */
    HPS_PARTITION_FROZEN,      /* its version is: records that name no version are passed over */
    HPS_PARTITION_HELD,        /* the batch at hand cannot be applied */
    HPS_PARTITION_UNREACHABLE, /* its leader does not answer */
    HPS_PARTITION_STATES
};
const char *hps_partition_state_text(enum hps_partition_state state); /* "starting", … */

/* Times in ms are by hps_clock_forward_ms. */
struct hps_partition_view {
    char topic[249];
    int32_t partition;
    enum hps_partition_state state;
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* of the topic that was read; "": not known */
    int64_t next;                          /* published; -1: not known yet */
    struct hps_witness last;               /* the last record before `next` */
    int64_t high;           /* one past the last record, as its leader said last; -1: not known */
    int64_t heard_ms;       /* ... and when (Unix ms) it was asked; 0: it has not answered yet */
    uint64_t lag;           /* records, up to `high` */
    bool lag_known;         /* `high` is young, and of the topic that was read */
    uint64_t word_until_us; /* until then (hps_clock_us) what its leader said is young */
    int64_t same_until_ms;  /* until then (Unix ms) it counts as of the topic that was read */
    int64_t as_of_ms;    /* every update logged before that is applied, proved by its leader; 0: not
                            known */
    int64_t same_ms;     /* when it was last known to be of the topic that was read; 0: not known */
    int64_t skipped;     /* hps_position.skipped of what is published */
    int64_t skipped_end; /* up to there, exclusive, at most; 0: not known */
    int64_t frozen;      /* likewise hps_position.frozen */
    double records_per_s;
    char reason[200]; /* of its state; what is to be known of one that runs */
};

/* A record that was read and is in no row. */
struct hps_rejected_view {
    char topic[249];
    int32_t partition;
    int64_t offset;
    int64_t read_ms;    /* hps_clock_forward_ms */
    uint64_t number;    /* the n-th that any stream has rejected since the start, from 1 */
    const char *reason; /* label of update_records_rejected_total; static */
    char text[120];
};
enum { HPS_REJECTED_VIEWS_MAX = 64 };

/* Since when a partition may have updates that are not applied; -1: not known. */
int64_t hps_partition_lag_ms(const struct hps_partition_view *view);

struct hps_stream_view {
    const char *model, *lineage;
    int64_t version;
    bool active;
    bool frozen;
    bool listed;                            /* the log has listed its topics */
    bool connected;                         /* to the log: some server of it answers */
    char away[200];                         /* why not; "": it is */
    bool leaders_up;                        /* the leaders of all partitions have answered lately */
    bool shared;                            /* a tier is, with other daemons */
    bool shared_behind;                     /* parts of it: they are not read from */
    bool shared_apart;                      /* records were passed over: it is left alone */
    char held[200];                         /* why a batch waits to be applied; "": none does */
    uint64_t sequence;                      /* batches applied */
    uint64_t n_records, n_rejected, n_keys; /* since it was added */
    int64_t event_time_ms;                  /* newest applied; 0: none */
    double records_per_s, keys_per_s;       /* applied, over the last seconds */
    int64_t as_of_ms; /* of all partitions, likewise; 0: not known, also without any */
    const struct hps_partition_view *partitions; /* by topic and number */
    uint32_t n_partitions;
    const struct hps_rejected_view *rejected; /* the newest ones, oldest first */
    uint32_t n_rejected_views;
    uint64_t n_rejected_numbers; /* given so far by any stream, as this was shown */
    uint64_t instance;           /* another one after a restart */
    uint32_t key_bytes;          /* of HCTR records */
};

/* Every stream, in no order; fn must not call back here. Any thread. */
void hps_updater_each(struct hps_updater *updater,
                      void (*fn)(void *ctx, const struct hps_stream_view *view), void *ctx);
/* update_lag_records, update_lag_seconds, update_gap, update_staleness_seconds, …: of active
 * versions. Any thread. */
void hps_updater_gauges(struct hps_updater *updater);

/* ---- waiting --------------------------------------------------------------------------------- */

enum hps_update_look {
    HPS_UPDATE_LOOK_DONE,
    HPS_UPDATE_LOOK_WAIT,
    HPS_UPDATE_LOOK_REFRESH /* ... and have the log asked as by HPS_UPDATE_REFRESH, not too often */
};

/* Why a wait is over. */
enum hps_update_end {
    HPS_UPDATE_END_LOOKED,  /* a look has said DONE */
    HPS_UPDATE_END_VERSION, /* the version takes no more updates */
    HPS_UPDATE_END_STOPS    /* the server stops */
};

/* One that waits for the updates of a version. Embed, zeroed; the first three are the caller's, the
 * rest is the updater's. Callbacks run on any thread, under locks: they must neither block nor call
 * back here. */
struct hps_update_waiter {
    /* After a turn of the stream, at most every 10 ms. */
    enum hps_update_look (*look)(struct hps_update_waiter *waiter,
                                 const struct hps_stream_view *view);
    /* It waits no more, and may be freed; with `state` set to NEW it may wait again, later. */
    void (*done)(struct hps_update_waiter *waiter, enum hps_update_end end);
    const void *who;   /* of one there may be 64, of all 256 */
    uint64_t begin_us; /* by hps_clock_us */
    bool refreshed;    /* a refresh has ended well that began later */
    enum { HPS_UPDATE_WAITER_NEW, HPS_UPDATE_WAITER_WAITS, HPS_UPDATE_WAITER_DONE } state;
    struct hps_update_stream *stream;
    struct hps_update_waiter *next;
};

/* Show it the view now and after turns. Any thread that may wait for a lock.
 *
 * owner   `waiter` stays the caller's, who keeps it until `done`, which may be before this returns,
 *         or until hps_updater_wait_end has returned true
 * error   NOT_FOUND: the version takes no updates; EXHAUSTED: too many wait; UNAVAILABLE: the
 *         server stops; CANCELLED: hps_updater_wait_end was called. Nothing was called
 */
hps_status hps_updater_wait(struct hps_updater *updater, const char *model, int64_t version,
                            struct hps_update_waiter *waiter, struct hps_error *err) HPS_MUST_CHECK;
/* It waits no more, nor will it. True: it did, and `done` does not come. Any thread, loops too. */
bool hps_updater_wait_end(struct hps_updater *updater, struct hps_update_waiter *waiter);
/* The server stops: end all waits, and take no more. Any thread. */
void hps_updater_waits_close(struct hps_updater *updater);

/* ---- commands -------------------------------------------------------------------------------- */

enum hps_update_command_kind {
    HPS_UPDATE_PAUSE,      /* holds over restarts */
    HPS_UPDATE_RESUME,     /* also tries again what FAILED */
    HPS_UPDATE_SEEK,       /* what is paused stays so */
    HPS_UPDATE_ACCEPT_GAP, /* go on behind the gap: what was in it is not applied */
    HPS_UPDATE_REFRESH     /* ask the log for new topics, and the leader of each partition for its
                              end, and whether it is still the same topic */
};
enum hps_update_seek {
    HPS_UPDATE_SEEK_OFFSET,
    HPS_UPDATE_SEEK_EARLIEST,
    HPS_UPDATE_SEEK_LATEST,
    HPS_UPDATE_SEEK_TIME
};

struct hps_update_command {
    enum hps_update_command_kind kind;
    const char *model; /* "": every one */
    int64_t version;   /* 0: every one */
    const char *topic; /* "": every one */
    int32_t partition; /* -1: every one */
    enum hps_update_seek to;
    int64_t value; /* the offset; or Unix ms */
};

/* Carry out, and wait until that is done. May block: for the log, and for a batch under way.
 * out_n   partitions that it changed; of a REFRESH: whose leaders have answered, which others have
 *         not within 2 s
 * error   NOT_FOUND: nothing there goes by these names; PRECONDITION: no gap to accept;
 *         UNAVAILABLE: the log does not answer, the version goes, or a half-applied batch must be
 *         completed before a SEEK or ACCEPT_GAP */
hps_status hps_updater_command(struct hps_updater *updater,
                               const struct hps_update_command *command, uint32_t *out_n,
                               struct hps_error *err) HPS_MUST_CHECK;

#endif
