/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches and look-ups that hold them back take turns: those who ask for a hold while a batch has
 * its turn get it together afterwards, and the next batch waits until they have let go. Any thread;
 * turns are those of the updater's.
 */
#include <time.h>

#include "base/assert.h"
#include "cache/update_internal.h"

enum { US_PER_S = 1000 * 1000 };

/* pthread_cond_timedwait with its own clock: holds are of this machine's time, not of a test's. */
static struct timespec latest(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += HPS_UPDATE_HELD_US_MAX / US_PER_S;
    return until;
}

void update_turn_begin(struct hps_updates *updates)
{
    struct timespec until = latest();
    int failed = 0;
    pthread_mutex_lock(&updates->lock);
    HPS_ASSERT(!updates->turn);
    updates->turn = true;
    while (updates->n_held > 0 && failed == 0) {
        failed = pthread_cond_timedwait(&updates->released, &updates->lock, &until);
    }
    pthread_mutex_unlock(&updates->lock);
}

void update_turn_end(struct hps_updates *updates)
{
    pthread_mutex_lock(&updates->lock);
    struct hps_update_hold *waiting = updates->waiting;
    updates->waiting = NULL;
    updates->turn = false;
    for (const struct hps_update_hold *hold = waiting; hold != NULL; hold = hold->next) {
        updates->n_held++;
    }
    pthread_mutex_unlock(&updates->lock);
    while (waiting != NULL) {
        struct hps_update_hold *hold = waiting;
        waiting = hold->next; /* it is not ours once it is granted */
        hold->granted(hold);
    }
}

bool hps_update_hold(struct hps_version *version, struct hps_update_hold *hold)
{
    struct hps_updates *updates = version->updates;
    bool held = true;
    if (updates == NULL) {
        return true;
    }
    pthread_mutex_lock(&updates->lock);
    held = !updates->turn;
    if (held) {
        updates->n_held++;
    } else {
        hold->next = updates->waiting;
        updates->waiting = hold;
    }
    pthread_mutex_unlock(&updates->lock);
    return held;
}

bool hps_update_hold_cancel(struct hps_version *version, const struct hps_update_hold *hold)
{
    struct hps_updates *updates = version->updates;
    if (updates == NULL) {
        return false;
    }
    pthread_mutex_lock(&updates->lock);
    struct hps_update_hold **at = &updates->waiting;
    while (*at != NULL && *at != hold) {
        at = &(*at)->next;
    }
    bool waited = *at != NULL;
    if (waited) {
        *at = hold->next;
    }
    pthread_mutex_unlock(&updates->lock);
    return waited;
}

void hps_update_release(struct hps_version *version)
{
    struct hps_updates *updates = version->updates;
    if (updates == NULL) {
        return;
    }
    pthread_mutex_lock(&updates->lock);
    HPS_ASSERT(updates->n_held > 0);
    if (--updates->n_held == 0) {
        pthread_cond_signal(&updates->released);
    }
    pthread_mutex_unlock(&updates->lock);
}

hps_status update_holds_init(struct hps_updates *updates)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) {
        return HPS_NO_MEMORY;
    }
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&updates->released, &attr);
    pthread_condattr_destroy(&attr);
    if (failed == 0) {
        failed = pthread_mutex_init(&updates->lock, NULL);
    }
    return failed == 0 ? HPS_OK : HPS_NO_MEMORY;
}

void update_holds_fini(struct hps_updates *updates)
{
    HPS_ASSERT(updates->n_held == 0 && updates->waiting == NULL);
    pthread_cond_destroy(&updates->released);
    pthread_mutex_destroy(&updates->lock);
}
