/* SPDX-License-Identifier: Apache-2.0
 *
 * The breaker of one store or node. While calls succeed, they read two atomics and write nothing.
 * The lock is taken only after a failure. Thread-safe.
 */
#include "backends/breaker.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"

struct hps_breaker {
    struct hps_breaker_options options;
    atomic_bool open;
    _Atomic uint32_t n_failed; /* consecutive; changed under the lock */
    struct hps_lock lock;
    bool probing;
    uint64_t pause_us; /* pause of the current opening */
    uint64_t probe_at_us;
    uint64_t opened_us;
};

struct hps_breaker *hps_breaker_new(const struct hps_breaker_options *options)
{
    struct hps_breaker *breaker = hps_calloc(1, sizeof(*breaker));

    if (breaker == NULL) {
        return NULL;
    }
    breaker->options = *options;
    hps_lock_init(&breaker->lock, HPS_LOCK_BREAKER);
    return breaker;
}

void hps_breaker_free(struct hps_breaker *breaker)
{
    if (breaker != NULL) {
        hps_lock_fini(&breaker->lock);
        hps_free(breaker);
    }
}

bool hps_breaker_up(const struct hps_breaker *breaker)
{
    return !atomic_load_explicit(&breaker->open, memory_order_relaxed);
}

enum hps_breaker_pass hps_breaker_enter(struct hps_breaker *breaker)
{
    enum hps_breaker_pass pass = HPS_BREAKER_PASSED;

    if (hps_breaker_up(breaker)) {
        return pass;
    }
    hps_lock_acquire(&breaker->lock);
    if (atomic_load_explicit(&breaker->open, memory_order_relaxed)) {
        bool due = !breaker->probing && hps_clock_us() >= breaker->probe_at_us;
        breaker->probing = breaker->probing || due;
        pass = due ? HPS_BREAKER_PROBE : HPS_BREAKER_REFUSED;
    }
    hps_lock_release(&breaker->lock);
    return pass;
}

static void open_now(struct hps_breaker *breaker, hps_status status)
{
    uint64_t now_us = hps_clock_us();

    atomic_store_explicit(&breaker->open, true, memory_order_relaxed);
    breaker->pause_us = breaker->options.pause_us_first;
    breaker->probe_at_us = now_us + breaker->pause_us;
    breaker->opened_us = now_us;
    const char *reason = breaker->options.reason;
    reason = reason != NULL && reason[0] != '\0' ? reason : hps_status_text(status);
    if (breaker->options.node != NULL) {
        HPS_LOG(ERROR, "cache",
                "node down: its calls failed or timed out; lookups skip the node until a probe "
                "succeeds",
                HPS_STR("tier", breaker->options.tier), HPS_STR("node", breaker->options.node),
                HPS_STR("error", reason));
        return;
    }
    HPS_LOG(
        ERROR, "cache",
        "tier down: its calls failed or timed out; lookups skip the tier until a probe succeeds",
        HPS_STR("tier", breaker->options.tier), HPS_STR("error", reason));
}

static void close_now(struct hps_breaker *breaker)
{
    atomic_store_explicit(&breaker->open, false, memory_order_relaxed);
    uint64_t duration_us = hps_clock_us() - breaker->opened_us;
    if (breaker->options.node != NULL) {
        HPS_LOG(INFO, "cache", "node up again", HPS_STR("tier", breaker->options.tier),
                HPS_STR("node", breaker->options.node), HPS_U64("duration_us", duration_us));
        return;
    }
    HPS_LOG(INFO, "cache", "tier up again", HPS_STR("tier", breaker->options.tier),
            HPS_U64("duration_us", duration_us));
}

static void leave_probe(struct hps_breaker *breaker, bool failed, bool said_nothing)
{
    breaker->probing = false;
    if (said_nothing) {
        return; /* the next call probes */
    }
    if (failed) {
        uint64_t pause_us = 2 * breaker->pause_us;
        breaker->pause_us =
            pause_us < breaker->options.pause_us_max ? pause_us : breaker->options.pause_us_max;
        breaker->probe_at_us = hps_clock_us() + breaker->pause_us;
        return;
    }
    atomic_store_explicit(&breaker->n_failed, 0, memory_order_relaxed);
    close_now(breaker);
}

void hps_breaker_leave(struct hps_breaker *breaker, enum hps_breaker_pass pass, hps_status status,
                       uint64_t duration_us)
{
    bool late = status == HPS_DEADLINE && duration_us >= breaker->options.timeout_us;
    bool failed = status == HPS_UNAVAILABLE || late;
    bool said_nothing = !failed && (status == HPS_DEADLINE || status == HPS_CANCELLED);
    bool probe = pass == HPS_BREAKER_PROBE;

    if (!probe && !failed &&
        (said_nothing || atomic_load_explicit(&breaker->n_failed, memory_order_relaxed) == 0)) {
        return;
    }
    hps_lock_acquire(&breaker->lock);
    bool open = atomic_load_explicit(&breaker->open, memory_order_relaxed);
    if (probe) {
        leave_probe(breaker, failed, said_nothing);
    } else if (!open) { /* calls that began before it opened cannot close it */
        uint32_t n = failed ? breaker->n_failed + 1 : 0;
        atomic_store_explicit(&breaker->n_failed, n, memory_order_relaxed);
        if (n >= breaker->options.failures_max) {
            open_now(breaker, status);
        }
    }
    hps_lock_release(&breaker->lock);
}
