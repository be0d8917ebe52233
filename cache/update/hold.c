/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches and look-ups that hold them back take turns. Look-ups wait in line, on no thread; one
 * task, which is posted while somebody waits, has them read one after the other. It asks for the
 * hold when it has a thread, so that nothing is held back while it waits for one; and when a batch
 * waits it lets go soon, whoever still stands in line. Any thread; turns are those of the
 * updater's.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/hash.h"
#include "base/lock.h"
#include "cache/update/internal.h"

enum { US_PER_S = 1000 * 1000 };

/* ---- turns ----------------------------------------------------------------------------------- */

#define TO(turn) (1U << (turn))

static const unsigned STEPS[UPDATE_TURNS] = {
    [UPDATE_TURN_FREE] = TO(UPDATE_TURN_BATCH) | TO(UPDATE_TURN_HELD),
    [UPDATE_TURN_BATCH] = TO(UPDATE_TURN_FREE) | TO(UPDATE_TURN_BATCH_THEN_HELD),
    [UPDATE_TURN_BATCH_THEN_HELD] = TO(UPDATE_TURN_HELD),
    [UPDATE_TURN_HELD] = TO(UPDATE_TURN_FREE) | TO(UPDATE_TURN_HELD_THEN_BATCH),
    [UPDATE_TURN_HELD_THEN_BATCH] = TO(UPDATE_TURN_BATCH) | TO(UPDATE_TURN_HELD),
};

/* Lock held, as by all of these. */
static void turn_set(struct hps_updates *updates, enum update_turn to)
{
    hps_lock_assert_held(&updates->lock);
    HPS_ASSERT(updates->turn < UPDATE_TURNS);
    HPS_ASSERT((STEPS[updates->turn] & TO(to)) != 0);
    updates->turn = to;
    hps_cond_broadcast(&updates->changed);
}

/* All that holds whenever the lock is given back. */
static void sane(const struct hps_updates *updates)
{
    HPS_ASSERT(updates->turn < UPDATE_TURNS);
    HPS_ASSERT(updates->reads || updates->reading == NULL);
    HPS_ASSERT(updates->reads || updates->waiting == NULL);
    HPS_ASSERT((updates->waiting == NULL) == (updates->waiting_last == NULL));
    HPS_ASSERT(updates->reads || !update_is_held(updates));
    HPS_ASSERT(updates->reads || updates->turn != UPDATE_TURN_BATCH_THEN_HELD);
    HPS_ASSERT(!updates->reads || (updates->read_version != NULL && updates->read_pool != NULL));
}

void update_turn_begin(struct hps_updates *updates)
{
    uint64_t until_us = hps_clock_us() + HPS_UPDATE_HELD_US_MAX;
    hps_lock_acquire(&updates->lock);
    turn_set(updates, update_is_held(updates) ? UPDATE_TURN_HELD_THEN_BATCH : UPDATE_TURN_BATCH);
    while (update_is_held(updates) &&
           hps_cond_wait_until(&updates->changed, &updates->lock, until_us)) {
    }
    sane(updates);
    hps_lock_release(&updates->lock);
}

static void begin_hold(struct hps_updates *updates)
{
    turn_set(updates, UPDATE_TURN_HELD);
    updates->held_since_us = hps_clock_us();
}

/* Legal if nothing is held. */
static void let_go(struct hps_updates *updates)
{
    struct hps_metric *metric = updates->read_version->update_holds;
    if (!update_is_held(updates)) {
        return;
    }
    if (metric != NULL) {
        hps_metric_observe_us(metric, hps_clock_us() - updates->held_since_us);
    }
    turn_set(updates, updates->turn == UPDATE_TURN_HELD ? UPDATE_TURN_FREE : UPDATE_TURN_BATCH);
}

/* Who has waited for this is next: were it only woken, the next batch might come first. */
void update_turn_end(struct hps_updates *updates)
{
    hps_lock_acquire(&updates->lock);
    if (updates->turn == UPDATE_TURN_BATCH_THEN_HELD) {
        begin_hold(updates);
    } else { /* a batch that waited for too long leaves the hold as it is */
        turn_set(updates, update_is_held(updates) ? UPDATE_TURN_HELD : UPDATE_TURN_FREE);
    }
    sane(updates);
    hps_lock_release(&updates->lock);
}

/* Behind the batch that is under way, or waits. */
static void hold_after_turn(struct hps_updates *updates)
{
    if (updates->turn == UPDATE_TURN_FREE) {
        begin_hold(updates);
        return;
    }
    turn_set(updates, UPDATE_TURN_BATCH_THEN_HELD);
    while (!update_is_held(updates)) {
        hps_cond_wait(&updates->changed, &updates->lock);
    }
}

/* ---- the line -------------------------------------------------------------------------------- */

/* Lock held, as by both of these. */
static void line_add(struct hps_updates *updates, struct hps_update_hold *hold)
{
    hold->waits = true;
    hold->next = NULL;
    hold->prev = updates->waiting_last;
    if (hold->prev != NULL) {
        hold->prev->next = hold;
    } else {
        updates->waiting = hold;
    }
    updates->waiting_last = hold;
}

static void line_remove(struct hps_updates *updates, struct hps_update_hold *hold)
{
    HPS_ASSERT(hold->waits);
    if (hold->prev != NULL) {
        hold->prev->next = hold->next;
    } else {
        updates->waiting = hold->next;
    }
    if (hold->next != NULL) {
        hold->next->prev = hold->prev;
    } else {
        updates->waiting_last = hold->prev;
    }
    hold->waits = false;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Lock held, as by all of these. */
static struct update_client *client_of(struct hps_updates *updates,
                                       const struct hps_update_hold *hold)
{
    return &updates->clients[hps_mix64(hold->client) % UPDATE_CLIENTS];
}

/* What a client has had of late; it is forgotten at the rate at which it may have more. */
static uint64_t held_us(struct update_client *client, uint64_t now_us)
{
    uint64_t forgotten_us =
        (now_us - client->as_of_us) * HPS_UPDATE_HOLD_US_PER_S / (uint64_t)US_PER_S;
    if (forgotten_us > 0) {
        client->held_us -= forgotten_us < client->held_us ? forgotten_us : client->held_us;
        client->as_of_us = now_us;
    }
    return client->held_us;
}

static bool is_over(struct update_client *client)
{
    return held_us(client, hps_clock_us()) >= HPS_UPDATE_HOLD_US_PER_S;
}

/* The one whose client has had least, of those that waits longest. NULL: nobody waits */
static struct hps_update_hold *take_next(struct hps_updates *updates)
{
    struct hps_update_hold *next = NULL;
    uint64_t now_us = hps_clock_us();
    uint64_t least_us = UINT64_MAX;
    for (struct hps_update_hold *at = updates->waiting; at != NULL; at = at->next) {
        uint64_t us = held_us(client_of(updates, at), now_us);
        if (us < least_us) {
            next = at;
            least_us = us;
        }
    }
    if (next != NULL) {
        line_remove(updates, next);
    }
    return next;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Lock held, but while they read: those in line, until nobody is left, a batch has waited for long
 * enough, or the one that is read is given up. */
static void read_in_turn(struct hps_updates *updates)
{
    struct hps_update_hold *next;
    bool more = true;
    HPS_ASSERT(updates->reading == NULL && updates->reads);
    while (more && (next = take_next(updates)) != NULL) {
        struct update_client *client = client_of(updates, next);
        bool held = !is_over(client);
        uint64_t from_us = hps_clock_us();
        updates->reading = next;
        hps_lock_release(&updates->lock);
        next->run(next, held); /* it is not ours any more */
        hps_lock_acquire(&updates->lock);
        uint64_t now_us = hps_clock_us();
        updates->reading = NULL;
        if (held) {
            client->held_us = held_us(client, now_us) + now_us - from_us;
        }
        bool batch_waits = updates->turn == UPDATE_TURN_HELD_THEN_BATCH;
        more = update_is_held(updates) &&
               (!batch_waits || now_us - updates->held_since_us < HPS_UPDATE_HOLD_US);
    }
}

/* Pool thread. */
static void on_thread(struct hps_task *task)
{
    struct hps_updates *updates = HPS_CONTAINER_OF(task, struct hps_updates, reader);
    struct hps_version *version = updates->read_version;
    bool posted = false;
    hps_lock_acquire(&updates->lock);
    while (updates->waiting != NULL && !posted) {
        hold_after_turn(updates);
        read_in_turn(updates);
        let_go(updates);
        /* Others may want the thread. */
        posted = updates->waiting != NULL &&
                 hps_pool_post(updates->read_pool, &updates->reader) == HPS_OK;
    }
    updates->reads = posted;
    sane(updates);
    hps_lock_release(&updates->lock);
    if (!posted) {
        hps_version_unpin(version);
    }
}

/* Lock held. EXHAUSTED: too much waits for a thread */
static hps_status start_reading(struct hps_version *version, struct hps_pool *pool)
{
    struct hps_updates *updates = version->updates;
    if (updates->reads) {
        return HPS_OK;
    }
    updates->reader.run = on_thread;
    HPS_ASSERT(updates->reading == NULL);
    updates->read_version = version;
    updates->read_pool = pool;
    hps_status status = hps_pool_post(pool, &updates->reader);
    if (status == HPS_OK) { /* it waits for the lock, if it has a thread */
        updates->reads = true;
        hps_version_pin(version);
    }
    return status;
}

hps_status hps_update_hold(struct hps_version *version, struct hps_pool *pool,
                           struct hps_update_hold *hold)
{
    struct hps_updates *updates = version->updates;
    HPS_ASSERT(updates != NULL);
    hps_lock_acquire(&updates->lock);
    hps_status status = is_over(client_of(updates, hold)) ? HPS_AGAIN : HPS_OK;
    if (status == HPS_OK) {
        status = start_reading(version, pool);
    }
    if (status == HPS_OK) {
        line_add(updates, hold);
    }
    sane(updates);
    hps_lock_release(&updates->lock);
    return status;
}

bool hps_update_hold_cancel(struct hps_version *version, struct hps_update_hold *hold)
{
    struct hps_updates *updates = version->updates;
    hps_lock_acquire(&updates->lock);
    bool waited = hold->waits;
    if (waited) {
        line_remove(updates, hold);
    } else if (updates->reading == hold) {
        let_go(updates);
    }
    sane(updates);
    hps_lock_release(&updates->lock);
    return waited;
}

/* ---- life ------------------------------------------------------------------------------------ */

void update_holds_init(struct hps_updates *updates)
{
    hps_lock_init(&updates->lock, HPS_LOCK_UPDATES);
    hps_cond_init(&updates->changed);
}

void update_holds_fini(struct hps_updates *updates)
{
    HPS_ASSERT(updates->turn == UPDATE_TURN_FREE && updates->waiting == NULL && !updates->reads);
    hps_cond_fini(&updates->changed);
    hps_lock_fini(&updates->lock);
}
