/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of peers, each with the ring of its slots, and a ring of all slots, under one lock. A
 * search for a slot to displace walks a bounded part of a ring. It begins where the last search
 * ended. So its cost does not grow with the table. Any thread.
 */
#include "net/peers.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"

enum {
    N_BUCKETS = 4096,
    LEAVING_MAX = 64,   /* displaced connections that have not closed yet */
    EXAMINED_MAX = 512, /* slots that a search compares */
    RESTING_MAX = 1024, /* peers without connections that are kept for their failures */
    IDLE_US_MIN = 1000 * 1000,
    REPORT_US = 10 * 1000 * 1000,
    LET_IN_US = 1000 * 1000 / HPS_PEERS_LET_IN_PER_S,
    LET_IN_BURST_US = 1000 * 1000,
    FAILURES_US = 60 * 1000 * 1000,
    SLOWED_US_MIN = 10 * 1000 * 1000, /* after the last failure of a peer that keeps failing */
};

/* Rings that a slot is in. */
enum ring { OF_PEER, OF_ALL, RINGS };

/* The lowest is displaced first. */
enum slot_use { USE_NO_REQUEST, USE_IDLE, USE_CALLS };

struct hps_peer_slot {
    struct hps_peers *peers;
    struct peer *peer;
    struct hps_peer_slot *next[RINGS], *prev[RINGS];
    void (*on_leave)(void *ctx); /* NULL: it cannot be displaced */
    void *ctx;
    atomic_bool leaving;
    atomic_bool asked;              /* it has had a request */
    _Atomic uint64_t idle_since_us; /* 0: it has calls */
};

/* In a bucket. It has `n` slots, and n_leaving of them are displaced. */
struct peer {
    struct peer *next;
    struct peer *over_next, *over_prev; /* list of peers above the share */
    struct peer *rest_next, *rest_prev; /* list of peers without a slot */
    uint64_t client;
    struct hps_peer_slot *hand;
    atomic_size_t held; /* bytes of requests that all its slots hold */
    unsigned n;
    unsigned n_leaving;
    bool is_over;
    bool is_resting;
    uint64_t failed_until_us; /* when its failures have expired; each one adds to it */
    uint64_t let_in_us;       /* slowed: its rate is used up to this time */
    uint64_t reported_us;
    uint64_t n_unreported;
};

struct hps_peers {
    struct hps_lock lock; /* protects all fields except the atomics of slots and peers */
    struct hps_peers_limits limits;
    struct hps_peers_metrics metrics;
    unsigned refs; /* the owner's and one per slot */
    unsigned n;    /* slots */
    unsigned n_leaving;
    uint64_t n_refused;
    struct hps_peer_slot *hand;
    struct peer *over;
    struct peer *rest_first, *rest_last;
    unsigned n_resting;
    struct peer *buckets[N_BUCKETS];
};

const char *hps_peers_refusal_name(enum hps_peers_refusal why)
{
    static const char *const names[HPS_PEERS_REFUSALS] = {
        [HPS_PEERS_FULL] = "connections_max",
        [HPS_PEERS_PEER_MAX] = "connections_per_peer_max",
        [HPS_PEERS_SLOWED] = "slowed",
        [HPS_PEERS_FAILED] = "failed",
    };

    HPS_ASSERT(why < HPS_PEERS_REFUSALS);
    return names[why];
}

const char *hps_peers_loss_name(enum hps_peers_loss why)
{
    static const char *const names[HPS_PEERS_LOSSES] = {
        [HPS_PEERS_IDLE] = "idle",
        [HPS_PEERS_OVER_SHARE] = "share",
    };

    HPS_ASSERT(why < HPS_PEERS_LOSSES);
    return names[why];
}

/* ---- rings ----------------------------------------------------------------------------------- */

static void ring_add(enum ring ring, struct hps_peer_slot **hand, struct hps_peer_slot *slot)
{
    struct hps_peer_slot *at = *hand;

    if (at == NULL) {
        slot->next[ring] = slot;
        slot->prev[ring] = slot;
        *hand = slot;
        return;
    }
    slot->next[ring] = at; /* before the hand: searches reach it last */
    slot->prev[ring] = at->prev[ring];
    at->prev[ring]->next[ring] = slot;
    at->prev[ring] = slot;
}

static void ring_remove(enum ring ring, struct hps_peer_slot **hand, struct hps_peer_slot *slot)
{
    struct hps_peer_slot *next = slot->next[ring];

    slot->prev[ring]->next[ring] = next;
    next->prev[ring] = slot->prev[ring];
    if (*hand == slot) {
        *hand = next == slot ? NULL : next;
    }
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Invariants between two calls. Caller holds the lock. */
static void peers_sane(const struct hps_peers *peers)
{
    hps_lock_assert_held(&peers->lock);
    HPS_ASSERT((peers->hand == NULL) == (peers->n == 0));
    HPS_ASSERT(peers->n_leaving <= peers->n);
    HPS_ASSERT(peers->limits.idle_at_once || peers->n_leaving <= LEAVING_MAX);
    HPS_ASSERT(peers->refs >= peers->n);
    HPS_ASSERT((peers->rest_first == NULL) == (peers->n_resting == 0));
    HPS_ASSERT((peers->rest_last == NULL) == (peers->n_resting == 0));
    HPS_ASSERT(peers->n_resting <= RESTING_MAX);
}

static void peer_sane(const struct peer *peer)
{
    HPS_ASSERT((peer->hand == NULL) == (peer->n == 0));
    HPS_ASSERT(peer->n_leaving <= peer->n);
    HPS_ASSERT(peer->n > 0 || atomic_load_explicit(&peer->held, memory_order_relaxed) == 0);
    HPS_ASSERT(!peer->is_resting || (peer->n == 0 && !peer->is_over));
}

static struct peer **bucket_of(struct hps_peers *peers, uint64_t client)
{
    return &peers->buckets[client % N_BUCKETS];
}

static void rest_remove(struct hps_peers *peers, struct peer *peer)
{
    HPS_ASSERT(peer->is_resting && peers->n_resting > 0);
    if (peer->rest_prev != NULL) {
        peer->rest_prev->rest_next = peer->rest_next;
    } else {
        peers->rest_first = peer->rest_next;
    }
    if (peer->rest_next != NULL) {
        peer->rest_next->rest_prev = peer->rest_prev;
    } else {
        peers->rest_last = peer->rest_prev;
    }
    peer->rest_next = NULL;
    peer->rest_prev = NULL;
    peer->is_resting = false;
    peers->n_resting--;
}

static void peer_free(struct hps_peers *peers, struct peer *peer)
{
    struct peer **at = bucket_of(peers, peer->client);

    HPS_ASSERT(peer->n == 0 && peer->hand == NULL && !peer->is_over);
    if (peer->is_resting) {
        rest_remove(peers, peer);
    }
    while (*at != peer) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = peer->next;
    hps_free(peer);
}

/* Frees a peer without slots, or keeps it while its failures count. */
static void peer_rest(struct hps_peers *peers, struct peer *peer, uint64_t now_us)
{
    HPS_ASSERT(peer->n == 0 && !peer->is_resting);
    if (peer->failed_until_us <= now_us) {
        peer_free(peers, peer);
        return;
    }
    peer->rest_prev = peers->rest_last;
    if (peers->rest_last != NULL) {
        peers->rest_last->rest_next = peer;
    } else {
        peers->rest_first = peer;
    }
    peers->rest_last = peer;
    peer->is_resting = true;
    if (++peers->n_resting > RESTING_MAX) {
        peer_free(peers, peers->rest_first);
    }
}

/* The peer, created if needed. NULL: no memory. */
static struct peer *peer_get(struct hps_peers *peers, uint64_t client)
{
    struct peer **bucket = bucket_of(peers, client);

    for (struct peer *peer = *bucket; peer != NULL; peer = peer->next) {
        if (peer->client == client) {
            return peer;
        }
    }
    struct peer *peer = hps_calloc(1, sizeof *peer);
    if (peer != NULL) {
        atomic_init(&peer->held, 0);
        peer->client = client;
        peer->next = *bucket;
        *bucket = peer;
    }
    return peer;
}

/* ---- shares ---------------------------------------------------------------------------------- */

static unsigned share_of_each(const struct hps_peers *peers)
{
    const struct hps_peers_limits *limits = &peers->limits;

    HPS_ASSERT(limits->share >= 0 && limits->share <= 1);
    if (limits->connections_max == 0 || limits->share == 0) {
        return UINT32_MAX;
    }
    unsigned share = (unsigned)(limits->connections_max * limits->share);
    return share > 0 ? share : 1;
}

/* Slots that are not displaced. */
static unsigned slots_kept(const struct peer *peer)
{
    return peer->n - peer->n_leaving;
}

/* Moves the peer into or out of the list of peers above the share, after its slots or the share
 * changed. */
static void over_update(struct hps_peers *peers, struct peer *peer)
{
    bool is_over = slots_kept(peer) > share_of_each(peers);

    if (is_over == peer->is_over) {
        return;
    }
    peer->is_over = is_over;
    if (is_over) {
        peer->over_prev = NULL;
        peer->over_next = peers->over;
        if (peers->over != NULL) {
            peers->over->over_prev = peer;
        }
        peers->over = peer;
        return;
    }
    if (peer->over_prev != NULL) {
        peer->over_prev->over_next = peer->over_next;
    } else {
        peers->over = peer->over_next;
    }
    if (peer->over_next != NULL) {
        peer->over_next->over_prev = peer->over_prev;
    }
}

/* NULL: no peer is above the share. The list is short, because the shares add up. */
static struct peer *who_has_most(const struct hps_peers *peers)
{
    struct peer *most = peers->over;

    for (struct peer *peer = peers->over; peer != NULL; peer = peer->over_next) {
        most = slots_kept(peer) > slots_kept(most) ? peer : most;
    }
    return most;
}

/* ---- displacement ---------------------------------------------------------------------------- */

/* Which slots a search accepts. */
struct wanted {
    enum slot_use use_max;
    uint64_t idle_us_min;
};

static bool may_go(const struct hps_peer_slot *slot, const struct wanted *wanted, uint64_t now_us,
                   enum slot_use *out_use, uint64_t *out_since_us)
{
    uint64_t since_us = atomic_load_explicit(&slot->idle_since_us, memory_order_relaxed);
    bool asked = atomic_load_explicit(&slot->asked, memory_order_relaxed);

    *out_use = !asked ? USE_NO_REQUEST : since_us > 0 ? USE_IDLE : USE_CALLS;
    *out_since_us = since_us;
    if (slot->on_leave == NULL || hps_peer_slot_is_leaving(slot) || *out_use > wanted->use_max) {
        return false;
    }
    return *out_use == USE_CALLS || since_us + wanted->idle_us_min <= now_us;
}

/* The first to displace among the slots that are compared; NULL: none may be displaced. */
static struct hps_peer_slot *find(enum ring ring, struct hps_peer_slot **hand, unsigned n,
                                  const struct wanted *wanted, uint64_t now_us)
{
    struct hps_peer_slot *best = NULL;
    enum slot_use best_use = USE_CALLS;
    uint64_t best_since_us = 0;

    for (unsigned i = 0; i < n && i < EXAMINED_MAX; i++) {
        struct hps_peer_slot *slot = *hand;
        enum slot_use use;
        uint64_t since_us;
        if (may_go(slot, wanted, now_us, &use, &since_us) &&
            (best == NULL || use < best_use || (use == best_use && since_us < best_since_us))) {
            best = slot;
            best_use = use;
            best_since_us = since_us;
        }
        *hand = slot->next[ring];
    }
    return best;
}

static void ask_to_leave(struct hps_peers *peers, struct hps_peer_slot *slot,
                         enum hps_peers_loss why)
{
    atomic_store_explicit(&slot->leaving, true, memory_order_release);
    slot->peer->n_leaving++;
    peers->n_leaving++;
    over_update(peers, slot->peer);
    if (peers->metrics.displaced[why] != NULL) {
        hps_metric_add(peers->metrics.displaced[why], 1);
    }
    slot->on_leave(slot->ctx);
}

/* Displaces a connection for a new one of `peer`. False: none may be displaced. */
static bool evict_one(struct hps_peers *peers, struct peer *peer, uint64_t now_us)
{
    struct wanted wanted = {.use_max = USE_IDLE,
                            .idle_us_min = peers->limits.idle_at_once ? 0 : IDLE_US_MIN};
    enum hps_peers_loss why = HPS_PEERS_IDLE;
    struct hps_peer_slot *slot = NULL;

    if (!peers->limits.idle_at_once && peers->n_leaving >= LEAVING_MAX) {
        return false;
    }
    if (slots_kept(peer) >= share_of_each(peers)) {
        slot = find(OF_PEER, &peer->hand, peer->n, &wanted, now_us);
    } else if (peers->over != NULL) {
        struct peer *most = who_has_most(peers);
        wanted = (struct wanted){.use_max = USE_CALLS, .idle_us_min = 0};
        slot = find(OF_PEER, &most->hand, most->n, &wanted, now_us);
        why = HPS_PEERS_OVER_SHARE;
    } else {
        slot = find(OF_ALL, &peers->hand, peers->n, &wanted, now_us);
    }
    if (slot == NULL) {
        return false;
    }
    ask_to_leave(peers, slot, why);
    return true;
}

/* ---- failures -------------------------------------------------------------------------------- */

static uint64_t failure_us(const struct hps_peers *peers)
{
    return FAILURES_US / peers->limits.failures_max;
}

/* Whether a slowed peer has used up its rate. */
static bool must_wait(const struct hps_peers *peers, struct peer *peer, uint64_t now_us)
{
    if (peers->limits.failures_max == 0 ||
        peer->failed_until_us + failure_us(peers) <= now_us + FAILURES_US) {
        return false;
    }
    if (peer->let_in_us < now_us) {
        peer->let_in_us = now_us;
    }
    if (peer->let_in_us + LET_IN_US > now_us + LET_IN_BURST_US) {
        return true;
    }
    peer->let_in_us += LET_IN_US;
    return false;
}

uint64_t hps_peer_slot_failed(struct hps_peer_slot *slot, uint64_t now_us)
{
    if (slot == NULL) {
        return 1;
    }
    struct hps_peers *peers = slot->peers;
    struct peer *peer = slot->peer;
    uint64_t n = 0;
    hps_lock_acquire(&peers->lock);
    if (peers->limits.failures_max > 0) {
        uint64_t until_us = peer->failed_until_us > now_us ? peer->failed_until_us : now_us;
        uint64_t last_us = now_us + FAILURES_US + SLOWED_US_MIN;
        until_us += failure_us(peers);
        peer->failed_until_us = until_us < last_us ? until_us : last_us;
    }
    peer->n_unreported++;
    if (peer->reported_us == 0 || now_us >= peer->reported_us + REPORT_US) {
        peer->reported_us = now_us;
        n = peer->n_unreported;
        peer->n_unreported = 0;
    }
    hps_lock_release(&peers->lock);
    return n;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void count_refused(struct hps_peers *peers, enum hps_peers_refusal why)
{
    HPS_ASSERT(why < HPS_PEERS_REFUSALS);
    peers->n_refused++;
    if (peers->metrics.refused[why] != NULL) {
        hps_metric_add(peers->metrics.refused[why], 1);
    }
}

void hps_peers_count_refused(struct hps_peers *peers, enum hps_peers_refusal why)
{
    hps_lock_acquire(&peers->lock);
    count_refused(peers, why);
    hps_lock_release(&peers->lock);
}

/* Whether a connection of `peer` is admitted; displaces another one if needed. */
static bool may_come(struct hps_peers *peers, struct peer *peer, bool is_unix, uint64_t now_us,
                     enum hps_peers_refusal *out_why)
{
    const struct hps_peers_limits *limits = &peers->limits;

    if (must_wait(peers, peer, now_us)) {
        *out_why = HPS_PEERS_SLOWED;
    } else if (!is_unix && limits->connections_per_peer_max > 0 &&
               peer->n >= limits->connections_per_peer_max) {
        *out_why = HPS_PEERS_PEER_MAX;
    } else if (limits->connections_max > 0 &&
               peers->n - peers->n_leaving >= limits->connections_max &&
               !evict_one(peers, peer, now_us)) {
        *out_why = HPS_PEERS_FULL;
    } else {
        return true;
    }
    return false;
}

static void slot_add(struct hps_peers *peers, struct peer *peer, struct hps_peer_slot *slot)
{
    if (peer->is_resting) {
        rest_remove(peers, peer);
    }
    ring_add(OF_PEER, &peer->hand, slot);
    ring_add(OF_ALL, &peers->hand, slot);
    peer->n++;
    peers->n++;
    peers->refs++;
    over_update(peers, peer);
}

struct hps_peer_slot *hps_peers_admit(struct hps_peers *peers, uint64_t client, bool is_unix,
                                      uint64_t now_us, enum hps_peers_refusal *out_why)
{
    struct hps_peer_slot *slot = hps_calloc(1, sizeof *slot);
    bool comes = false;

    *out_why = HPS_PEERS_FAILED;
    hps_lock_acquire(&peers->lock);
    struct peer *peer = slot != NULL ? peer_get(peers, client) : NULL;
    if (peer != NULL) {
        comes = may_come(peers, peer, is_unix, now_us, out_why);
    }
    if (comes) {
        slot->peers = peers;
        slot->peer = peer;
        atomic_init(&slot->leaving, false);
        atomic_init(&slot->asked, false);
        atomic_init(&slot->idle_since_us, now_us);
        slot_add(peers, peer, slot);
        peer_sane(peer);
    } else {
        count_refused(peers, *out_why);
        if (peer != NULL && peer->n == 0 && !peer->is_resting) {
            peer_free(peers, peer);
        }
    }
    peers_sane(peers);
    hps_lock_release(&peers->lock);
    if (!comes) {
        hps_free(slot);
        return NULL;
    }
    return slot;
}

/* Releases the lock. */
static void unref(struct hps_peers *peers)
{
    HPS_ASSERT(peers->refs > 0);
    bool last = --peers->refs == 0;
    while (last && peers->rest_first != NULL) {
        peer_free(peers, peers->rest_first);
    }
    hps_lock_release(&peers->lock);
    if (last) {
        hps_lock_fini(&peers->lock);
        hps_free(peers);
    }
}

void hps_peer_slot_free(struct hps_peer_slot *slot)
{
    if (slot == NULL) {
        return;
    }
    struct hps_peers *peers = slot->peers;
    struct peer *peer = slot->peer;
    hps_lock_acquire(&peers->lock);
    HPS_ASSERT(peer->n > 0 && peers->n > 0);
    ring_remove(OF_PEER, &peer->hand, slot);
    ring_remove(OF_ALL, &peers->hand, slot);
    if (hps_peer_slot_is_leaving(slot)) {
        HPS_ASSERT(peer->n_leaving > 0 && peers->n_leaving > 0);
        peer->n_leaving--;
        peers->n_leaving--;
    }
    peer->n--;
    peers->n--;
    over_update(peers, peer);
    peer_sane(peer);
    if (peer->n == 0) {
        peer_rest(peers, peer, hps_clock_us());
    }
    peers_sane(peers);
    unref(peers);
    hps_free(slot);
}

void hps_peer_slot_on_leave(struct hps_peer_slot *slot, void (*on_leave)(void *ctx), void *ctx)
{
    hps_lock_acquire(&slot->peers->lock);
    HPS_ASSERT(slot->on_leave == NULL && on_leave != NULL);
    slot->on_leave = on_leave;
    slot->ctx = ctx;
    hps_lock_release(&slot->peers->lock);
}

bool hps_peer_slot_is_leaving(const struct hps_peer_slot *slot)
{
    return atomic_load_explicit(&slot->leaving, memory_order_acquire);
}

void hps_peer_slot_busy(struct hps_peer_slot *slot)
{
    if (slot != NULL) {
        atomic_store_explicit(&slot->asked, true, memory_order_relaxed);
        atomic_store_explicit(&slot->idle_since_us, 0, memory_order_relaxed);
    }
}

void hps_peer_slot_idle(struct hps_peer_slot *slot, uint64_t now_us)
{
    if (slot != NULL) {
        atomic_store_explicit(&slot->idle_since_us, now_us, memory_order_relaxed);
    }
}

void hps_peer_slot_hold(struct hps_peer_slot *slot, size_t more)
{
    if (slot != NULL) {
        atomic_fetch_add_explicit(&slot->peer->held, more, memory_order_relaxed);
    }
}

size_t hps_peer_slot_peer_bytes(const struct hps_peer_slot *slot)
{
    return slot != NULL ? atomic_load_explicit(&slot->peer->held, memory_order_relaxed) : 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_peers *hps_peers_new(const struct hps_peers_limits *limits,
                                const struct hps_peers_metrics *metrics)
{
    struct hps_peers *peers = hps_calloc(1, sizeof *peers);

    if (peers == NULL) {
        return NULL;
    }
    hps_lock_init(&peers->lock, HPS_LOCK_PEERS);
    peers->limits = *limits;
    if (metrics != NULL) {
        peers->metrics = *metrics;
    }
    peers->refs = 1;
    return peers;
}

void hps_peers_free(struct hps_peers *peers)
{
    if (peers != NULL) {
        hps_lock_acquire(&peers->lock);
        unref(peers);
    }
}

void hps_peers_limits_set(struct hps_peers *peers, const struct hps_peers_limits *limits)
{
    hps_lock_acquire(&peers->lock);
    peers->limits = *limits;
    for (unsigned i = 0; i < N_BUCKETS; i++) {
        for (struct peer *peer = peers->buckets[i]; peer != NULL; peer = peer->next) {
            over_update(peers, peer);
        }
    }
    hps_lock_release(&peers->lock);
}

unsigned hps_peers_connections(struct hps_peers *peers)
{
    hps_lock_acquire(&peers->lock);
    unsigned n = peers->n;
    hps_lock_release(&peers->lock);
    return n;
}

uint64_t hps_peers_refused(struct hps_peers *peers)
{
    hps_lock_acquire(&peers->lock);
    uint64_t n = peers->n_refused;
    hps_lock_release(&peers->lock);
    return n;
}
