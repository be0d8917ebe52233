/* SPDX-License-Identifier: Apache-2.0
 *
 * Applies updates from a log to the rows of resident versions. Each version that is added gets a
 * *stream*: a thread `update` with its own consumer, until the version is removed.
 *
 *     poll ─▶ decode ─▶ batch ─▶ hps_update_apply: rows, deletes and positions at once
 *       ▲                              │ EXHAUSTED, IO: the batch is held and applied again after
 *       │                              ▼ a pause; until then the stream does not poll
 *       └── commit, later ◀── freshness, lag, as-of
 *
 * partition/next.h describes the phases of a partition and the events that end them.
 *
 * Ownership. Only the stream's thread uses its consumer, its decoder, its partitions and the pin of
 * its version. After each turn the thread copies a view under the stream's lock, for readers. A
 * command waits in the queue of the stream until the thread has carried it out. The updater's
 * `lock` guards the list of streams.
 *
 * A tier that is shared with other daemons has the rows of the files and of the log
 * (docs/redis.md). If shards of it lag, a second consumer of the stream replays the log to them,
 * from their lowest position to the published one. The stream polls the two consumers in turn. If
 * the log no longer has these records, or there are too many, the shards are emptied. A version
 * that has skipped records (by a seek forward, a gap, or while frozen) differs from the version on
 * other daemons, so it bypasses the tier. A seek back to the skipped records ends this.
 *
 * When a version of another lineage becomes the active one, the other versions are *frozen*. A
 * frozen version skips records that name no version, and applies records that name it. A seek ends
 * this. The number of the switch is stored, too. So a daemon that crashed between a switch and the
 * freezing freezes the versions when it starts.
 */
#ifndef HPS_SERVER_UPDATE_UPDATES_H
#define HPS_SERVER_UPDATE_UPDATES_H

#include <sys/queue.h>

#include "config/manifest.h"
#include "server/update/partition/options.h"
#include "server/update/partition/view.h"
#include "server/update/stream/command.h"

struct hps_updater;
struct hps_version;

/* Make an updater without streams. The caller owns it: hps_updater_free. `options` is copied, with
 * borrowed pointers. NO_MEMORY. */
hps_status hps_updater_new(const struct hps_updater_options *options,
                           struct hps_updater **out_updater, struct hps_error *err) HPS_MUST_CHECK;
/* End all streams and wait for their threads. Later calls of hps_updater_add have no effect. NULL
 * is allowed, as in all functions below. */
void hps_updater_stop(struct hps_updater *updater);
void hps_updater_free(struct hps_updater *updater); /* stops */

/* Store where the files of a new version end: the start positions of its manifest, and the time of
 * its oldest file. Also store that the first n_switches switches of its model have not frozen it.
 * Call it once, before the version is added, even without an updater. The caller holds a pin. May
 * block. */
hps_status hps_updater_seed(struct hps_version *version, const struct hps_manifest *manifest,
                            uint64_t oldest_file_ms, uint64_t n_switches, struct hps_error *err)
    HPS_MUST_CHECK;
/* A hash of where updates of such files start: of the positions of the manifest, and of the start
 * time of partitions without a position. If the hashes of two versions differ, the same log gives
 * them different rows. 0: `updater` is NULL. Any thread. */
uint64_t hps_updater_start_hash(const struct hps_updater *updater,
                                const struct hps_manifest *manifest, uint64_t oldest_file_ms);
/* Write where updates of such files start, as a sentence for operators. False: `updater` is NULL.
 * Any thread. */
bool hps_updater_start_text(const struct hps_updater *updater, const struct hps_manifest *manifest,
                            uint64_t oldest_file_ms, char *out_text, size_t size) HPS_MUST_CHECK;
/* Set the positions of the version in a tier that is shared with other daemons. Call it after
 * hps_update_open and the seed, before the version is served, even without an updater. Does not
 * wait for the tier. */
hps_status hps_updater_place(struct hps_version *version, struct hps_error *err) HPS_MUST_CHECK;
/* Start applying updates. n_switches: the number of switches of its model so far. Takes a pin, and
 * releases it soon after hps_updater_remove. Errors are logged. */
void hps_updater_add(struct hps_updater *updater, struct hps_version *version, uint64_t n_switches);
/* Stop applying updates. Does not wait for a batch in flight. */
void hps_updater_remove(struct hps_updater *updater, const struct hps_version *version);
/* The switch with number n_switches has made this version the active one of its model. Versions of
 * another lineage are frozen, unless a later switch is known to them. Also call it once at each
 * start. */
void hps_updater_activated(struct hps_updater *updater, const struct hps_version *version,
                           uint64_t n_switches);
/* Check that version `number` is fresh enough to become the active version of the model. It is
 * fresh enough if its lag is at most lag_max_ms. Otherwise its lag may exceed the lag of the active
 * version by at most lag_max_ms, and it must not be behind the active version in any partition. A
 * version without updates, or a frozen one, passes the check.
 *
 * error   PRECONDITION: it is not fresh enough: how far it lags, and where; NO_MEMORY
 * thread  any
 */
hps_status hps_updater_check_lag(struct hps_updater *updater, const char *model, int64_t number,
                                 uint64_t lag_max_ms, struct hps_error *err) HPS_MUST_CHECK;
/* Change options while streams run. Any thread. */
void hps_updater_reconfigure(struct hps_updater *updater, bool nan_allowed,
                             uint64_t rows_per_s_max);

/* ---- views ----------------------------------------------------------------------------------- */

/* Call fn for the view of each stream, in no order. fn must not call functions of this header. Any
 * thread. */
void hps_updater_each(struct hps_updater *updater,
                      void (*fn)(void *ctx, const struct hps_stream_view *view), void *ctx);
/* Set update_lag_records, update_lag_seconds, update_gap, update_staleness_seconds and the other
 * gauges of active versions. One thread at a time. */
void hps_updater_gauges(struct hps_updater *updater);

/* ---- waiting --------------------------------------------------------------------------------- */

enum hps_update_check {
    HPS_UPDATE_CHECK_DONE,
    HPS_UPDATE_CHECK_WAIT,
    HPS_UPDATE_CHECK_REFRESH /* wait, and refresh as hps_updater_refresh does, but not too often */
};

/* Why a wait ends. */
enum hps_update_end {
    HPS_UPDATE_END_DONE,    /* a check returned DONE */
    HPS_UPDATE_END_VERSION, /* the version takes no more updates */
    HPS_UPDATE_END_STOPS    /* the server stops */
};

/* A waiter waits for the updates of a version, or for a refresh. Embed it, zeroed. The caller sets
 * `check` or `wants`, `done` and `client`; the updater sets the rest. Callbacks run on any thread,
 * under locks. They must not block, and must not call functions of this header. */
struct hps_update_waiter {
    /* hps_updater_wait: called after a turn of the stream, at most every 10 ms. */
    enum hps_update_check (*check)(struct hps_update_waiter *waiter,
                                   const struct hps_stream_view *view);
    /* hps_updater_refresh: whether this version is refreshed. */
    bool (*wants)(struct hps_update_waiter *waiter, const char *model, int64_t version);
    /* The wait has ended. The caller may free the waiter, or set `state` to NEW to wait again. */
    void (*done)(struct hps_update_waiter *waiter, enum hps_update_end end);
    const void *client; /* one client may have 64 waiters, all clients 256 */
    uint64_t begin_us;  /* by hps_clock_us; 0: it has not begun */
    bool refreshed;     /* a refresh that began after begin_us has succeeded */
    enum { HPS_UPDATE_WAITER_NEW, HPS_UPDATE_WAITER_WAITS, HPS_UPDATE_WAITER_DONE } state;
    struct hps_update_stream *stream;
    LIST_ENTRY(hps_update_waiter) all;
};

/* Let the waiter check the view now and after turns. Any thread that may wait for a lock.
 *
 * owner   the caller owns `waiter`, and must keep it until `done` is called, which may be before
 *         this returns, or until hps_updater_wait_end has returned true
 * error   NOT_FOUND: the version takes no updates; EXHAUSTED: too many waiters; UNAVAILABLE: the
 *         server stops; CANCELLED: hps_updater_wait_end was called. No callback is called
 */
hps_status hps_updater_wait(struct hps_updater *updater, const char *model, int64_t version,
                            struct hps_update_waiter *waiter, struct hps_error *err) HPS_MUST_CHECK;
/* Refresh the views of the versions that `wants` names: list the topics, ask the leader of each
 * partition for its end, and check that each topic is still the same. All callers share the
 * refreshes of a version: it has one at a time, and a refresh serves all who have come before it
 * began. Leaders that do not answer within 2 s are left out. Any thread that may wait for a lock.
 *
 * OK      all are refreshed since the first call for this waiter
 * error   AGAIN: they are not; `done` follows, unless hps_updater_wait_end returns true. The caller
 *           then calls this again, for the same waiter in state NEW
 *         UNAVAILABLE: Kafka does not answer; others as hps_updater_wait, except for NOT_FOUND
 */
hps_status hps_updater_refresh(struct hps_updater *updater, struct hps_update_waiter *waiter,
                               struct hps_error *err) HPS_MUST_CHECK;
/* End the wait, or prevent it. True: it waited, and `done` is not called. Any thread, also of an
 * event loop. */
bool hps_updater_wait_end(struct hps_updater *updater, struct hps_update_waiter *waiter);
/* The server stops: end all waits, and refuse new ones. Any thread. */
void hps_updater_waits_close(struct hps_updater *updater);

/* ---- commands -------------------------------------------------------------------------------- */

/* Carry out a command: on one version after the other, until one fails. Waits for nothing but
 * locks; `done` may be called before this returns. A command cannot be withdrawn. Any thread that
 * may wait for a lock. */
void hps_updater_command(struct hps_updater *updater, struct hps_update_work *work);

#endif
