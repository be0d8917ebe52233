/* SPDX-License-Identifier: Apache-2.0
 *
 * Under one lock: the clients by number, each with the ring of its places, and for each number of
 * places the ring of the clients that have it. So the client with the most places is found at once.
 * A search of a ring begins where the last one ended. Failures are in a table of their own,
 * because they outlive the places of a client.
 */
#include "net/places.h"

#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/lock.h"

enum {
    BUCKETS = 4096,
    LEVELS = 256,       /* clients with LEVELS - 1 places or more are in one ring */
    LEAVING_MAX = 64,   /* displaced connections that have not closed yet */
    COMPARED_MAX = 512, /* places that a search compares */
    FAILING_SETS = 256, /* of the table of failures; each has four clients */
    FAILING_WAYS = 4,
    SECOND_US = 1000 * 1000,
    IDLE_US_MIN = SECOND_US,
    REPORT_US = 10 * SECOND_US,
    LET_IN_US = SECOND_US / HPS_PLACES_LET_IN_PER_S,
    FAILURES_US = 60 * SECOND_US,
    SLOWED_US_MIN = 10 * SECOND_US, /* after the last failure of a client that keeps failing */
};

struct link {
    struct link *next, *prev;
};

/* The state of a connection, and the order in which connections are displaced. */
enum rank { RANK_NO_REQUEST, RANK_IDLE, RANK_YOUNG, RANK_CALLS };

struct hps_place {
    struct link link; /* of its client's ring, until it is displaced */
    struct hps_place_table *table;
    struct client *client;
    void (*on_leave)(void *ctx); /* NULL: it cannot be displaced */
    void *ctx;
    bool short_calls;
    atomic_bool leaving;
    atomic_int rank; /* NO_REQUEST, IDLE or CALLS */
    _Atomic uint64_t since_us;
};

struct client {
    struct client *next; /* of its bucket */
    struct link link;    /* of its level's ring, while n > 0 */
    struct link *places; /* ring; a search begins here */
    uint64_t number;
    unsigned n; /* places that are not displaced */
    unsigned n_leaving;
};

struct failing {
    uint64_t client;
    uint64_t until_us;  /* when its failures have expired; each one adds to it */
    uint64_t let_in_us; /* slowed: its rate is used up to this time */
    uint64_t reported_us;
    uint64_t n_unreported;
};

struct hps_place_table {
    struct hps_lock lock; /* protects all fields except the atomics of places and clients */
    struct hps_place_limits limits;
    struct hps_metric *displaced[HPS_PLACES_LOSSES];
    unsigned n; /* places; each has a reference */
    unsigned n_leaving;
    bool is_owned; /* the owner's reference */
    unsigned most; /* the highest level that is not empty */
    struct link *levels[LEVELS];
    struct client *buckets[BUCKETS];
    struct failing failing[FAILING_SETS][FAILING_WAYS];
};

const char *hps_place_refusal_name(enum hps_place_refusal why)
{
    static const char *const names[HPS_PLACES_REFUSALS] = {
        [HPS_PLACES_FULL] = "connections_max",
        [HPS_PLACES_CLIENT_MAX] = "connections_per_peer_max",
        [HPS_PLACES_SLOWED] = "slowed",
        [HPS_PLACES_FAILED] = "failed",
    };

    HPS_ASSERT(why < HPS_PLACES_REFUSALS);
    return names[why];
}

const char *hps_place_loss_name(enum hps_place_loss which)
{
    HPS_ASSERT(which < HPS_PLACES_LOSSES);
    return which == HPS_PLACES_IDLE ? "idle" : "share";
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Adds a link where searches reach it last. */
static void ring_add(struct link **ring, struct link *link)
{
    struct link *first = *ring != NULL ? *ring : link;

    link->next = first;
    link->prev = *ring != NULL ? first->prev : link;
    link->prev->next = link;
    first->prev = link;
    *ring = first;
}

static void ring_remove(struct link **ring, struct link *link)
{
    if (*ring == link) {
        *ring = link->next == link ? NULL : link->next;
    }
    link->prev->next = link->next;
    link->next->prev = link->prev;
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct client *client_at(struct link *link)
{
    return HPS_CONTAINER_OF(link, struct client, link);
}

static unsigned level_of(unsigned n)
{
    return n < LEVELS ? n : LEVELS - 1;
}

/* The client, created if needed. NULL: no memory. */
static struct client *client_get(struct hps_place_table *table, uint64_t number)
{
    struct client **bucket = &table->buckets[number % BUCKETS];
    struct client *client = *bucket;

    while (client != NULL && client->number != number) {
        client = client->next;
    }
    if (client == NULL && (client = hps_calloc(1, sizeof *client)) != NULL) {
        client->number = number;
        client->next = *bucket;
        *bucket = client;
    }
    return client;
}

static void client_free_unused(struct hps_place_table *table, struct client *client)
{
    struct client **at = &table->buckets[client->number % BUCKETS];

    if (client->n > 0 || client->n_leaving > 0) {
        return;
    }
    while (*at != client) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = client->next;
    hps_free(client);
}

static void client_set_n(struct hps_place_table *table, struct client *client, unsigned n)
{
    if (client->n > 0) {
        ring_remove(&table->levels[level_of(client->n)], &client->link);
    }
    client->n = n;
    if (n > 0) {
        ring_add(&table->levels[level_of(n)], &client->link);
    }
    table->most = level_of(n) > table->most ? level_of(n) : table->most;
    while (table->most > 0 && table->levels[table->most] == NULL) {
        table->most--;
    }
    HPS_ASSERT((client->places == NULL) == (n == 0));
}

/* The table has places that are not displaced. */
static struct client *client_with_most(const struct hps_place_table *table)
{
    struct link *first = table->levels[table->most];
    struct client *most = client_at(first);

    for (struct link *at = first->next; table->most == LEVELS - 1 && at != first; at = at->next) {
        most = client_at(at)->n > most->n ? client_at(at) : most;
    }
    return most;
}

/* ---- displacement ---------------------------------------------------------------------------- */

struct candidate {
    struct hps_place *place; /* NULL: none */
    enum rank rank;
    uint64_t since_us;
};

static void compare(struct hps_place *place, uint64_t now_us, struct candidate *slowest)
{
    enum rank rank = (enum rank)atomic_load_explicit(&place->rank, memory_order_relaxed);
    uint64_t since_us = atomic_load_explicit(&place->since_us, memory_order_relaxed);

    if (rank == RANK_CALLS && place->short_calls) {
        rank = RANK_IDLE;
    }
    if (rank != RANK_CALLS && since_us + IDLE_US_MIN > now_us) {
        rank = RANK_YOUNG;
    }
    if (place->on_leave != NULL && (slowest->place == NULL || rank < slowest->rank ||
                                    (rank == slowest->rank && since_us < slowest->since_us))) {
        *slowest = (struct candidate){place, rank, since_us};
    }
}

/* The slowest place of the client, or of all clients that follow it in its level's ring. */
static struct candidate find_slowest(struct hps_place_table *table, struct client *client,
                                     bool of_level, uint64_t now_us)
{
    struct candidate slowest = {0};
    const struct client *first = client;
    unsigned left = COMPARED_MAX;

    do {
        for (unsigned i = 0; i < client->n && left > 0; i++, left--) {
            compare(HPS_CONTAINER_OF(client->places, struct hps_place, link), now_us, &slowest);
            client->places = client->places->next;
        }
        client = client_at(client->link.next);
    } while (of_level && client != first && left > 0);
    if (of_level) {
        table->levels[level_of(client->n)] = &client->link;
    }
    return slowest;
}

static void ask_to_leave(struct hps_place_table *table, const struct candidate *slowest)
{
    struct hps_place *place = slowest->place;
    struct client *client = place->client;
    bool had_calls = slowest->rank == RANK_CALLS;
    struct hps_metric *metric = table->displaced[had_calls ? HPS_PLACES_CALLS : HPS_PLACES_IDLE];

    atomic_store_explicit(&place->leaving, true, memory_order_release);
    ring_remove(&client->places, &place->link);
    client_set_n(table, client, client->n - 1);
    client->n_leaving++;
    table->n_leaving++;
    if (metric != NULL) {
        hps_metric_add(metric, 1);
    }
    place->on_leave(place->ctx);
}

/* Displaces a connection for a new one of `client`. False: none may be displaced. */
static bool displace(struct hps_place_table *table, struct client *client, uint64_t now_us)
{
    struct client *most = client_with_most(table);
    unsigned n = client->n + 1;
    bool any = table->limits.short_calls || most->n > n;

    if (!table->limits.short_calls && table->n_leaving >= LEAVING_MAX) {
        return false;
    }
    /* Clients in the last level have different numbers of places. */
    struct candidate slowest =
        most->n < n ? find_slowest(table, client, false, now_us)
                    : find_slowest(table, most, most->n == n && n < LEVELS - 1, now_us);
    if (slowest.place == NULL || (slowest.rank > RANK_IDLE && !any)) {
        return false;
    }
    ask_to_leave(table, &slowest);
    return true;
}

/* ---- failures -------------------------------------------------------------------------------- */

/* The failures of a client. They may replace those of another client. */
static struct failing *failing_get(struct hps_place_table *table, uint64_t client)
{
    struct failing *set = table->failing[client % FAILING_SETS];
    struct failing *oldest = set;

    for (struct failing *at = set; at < set + FAILING_WAYS; at++) {
        if (at->client == client) {
            return at;
        }
        oldest = at->reported_us < oldest->reported_us ? at : oldest;
    }
    *oldest = (struct failing){.client = client};
    return oldest;
}

static uint64_t failure_us(const struct hps_place_table *table)
{
    return FAILURES_US / table->limits.failures_max;
}

/* Whether a slowed client has used up its rate. */
static bool must_wait(struct hps_place_table *table, uint64_t client, uint64_t now_us)
{
    if (table->limits.failures_max == 0) {
        return false;
    }
    struct failing *failing = failing_get(table, client);
    if (failing->until_us + failure_us(table) <= now_us + FAILURES_US) {
        return false;
    }
    if (failing->let_in_us < now_us) {
        failing->let_in_us = now_us;
    }
    if (failing->let_in_us + LET_IN_US > now_us + SECOND_US) {
        return true;
    }
    failing->let_in_us += LET_IN_US;
    return false;
}

uint64_t hps_place_failed(struct hps_place *place, uint64_t now_us)
{
    uint64_t n = 0;

    if (place == NULL) {
        return 1;
    }
    struct hps_place_table *table = place->table;
    hps_lock_acquire(&table->lock);
    struct failing *failing = failing_get(table, place->client->number);
    if (table->limits.failures_max > 0) {
        uint64_t until_us = failing->until_us > now_us ? failing->until_us : now_us;
        uint64_t last_us = now_us + FAILURES_US + SLOWED_US_MIN;
        until_us += failure_us(table);
        failing->until_us = until_us < last_us ? until_us : last_us;
    }
    failing->n_unreported++;
    if (failing->reported_us == 0 || now_us >= failing->reported_us + REPORT_US) {
        failing->reported_us = now_us;
        n = failing->n_unreported;
        failing->n_unreported = 0;
    }
    hps_lock_release(&table->lock);
    return n;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Whether a connection of `client` is admitted; displaces another one if needed. */
static bool may_come(struct hps_place_table *table, struct client *client, bool is_unix,
                     uint64_t now_us, enum hps_place_refusal *out_why)
{
    const struct hps_place_limits *limits = &table->limits;

    if (must_wait(table, client->number, now_us)) {
        *out_why = HPS_PLACES_SLOWED;
    } else if (!is_unix && limits->client_max > 0 &&
               client->n + client->n_leaving >= limits->client_max) {
        *out_why = HPS_PLACES_CLIENT_MAX;
    } else if (limits->max > 0 && table->n - table->n_leaving >= limits->max &&
               !displace(table, client, now_us)) {
        *out_why = HPS_PLACES_FULL;
    } else {
        return true;
    }
    return false;
}

struct hps_place *hps_places_admit(struct hps_place_table *table, uint64_t client, bool is_unix,
                                   uint64_t now_us, enum hps_place_refusal *out_why)
{
    struct hps_place *place = hps_calloc(1, sizeof *place);
    bool comes = false;

    *out_why = HPS_PLACES_FAILED;
    hps_lock_acquire(&table->lock);
    struct client *owner = place != NULL ? client_get(table, client) : NULL;
    if (owner != NULL) {
        comes = may_come(table, owner, is_unix, now_us, out_why);
    }
    if (comes) {
        place->table = table;
        place->client = owner;
        place->short_calls = table->limits.short_calls;
        atomic_init(&place->since_us, now_us);
        ring_add(&owner->places, &place->link);
        client_set_n(table, owner, owner->n + 1);
        table->n++;
    } else {
        hps_free(place);
        place = NULL;
        if (owner != NULL) {
            client_free_unused(table, owner);
        }
    }
    hps_lock_release(&table->lock);
    return place;
}

/* A reference was dropped. Releases the lock. */
static void release(struct hps_place_table *table)
{
    bool unused = table->n == 0 && !table->is_owned;

    HPS_ASSERT(table->n_leaving <= table->n);
    hps_lock_release(&table->lock);
    if (unused) {
        hps_lock_fini(&table->lock);
        hps_free(table);
    }
}

void hps_place_free(struct hps_place *place)
{
    if (place == NULL) {
        return;
    }
    struct hps_place_table *table = place->table;
    struct client *client = place->client;
    hps_lock_acquire(&table->lock);
    if (hps_place_is_leaving(place)) {
        HPS_ASSERT(client->n_leaving > 0 && table->n_leaving > 0);
        client->n_leaving--;
        table->n_leaving--;
    } else {
        ring_remove(&client->places, &place->link);
        client_set_n(table, client, client->n - 1);
    }
    table->n--;
    client_free_unused(table, client);
    release(table);
    hps_free(place);
}

void hps_place_on_leave(struct hps_place *place, void (*on_leave)(void *ctx), void *ctx)
{
    hps_lock_acquire(&place->table->lock);
    HPS_ASSERT(place->on_leave == NULL && on_leave != NULL);
    place->on_leave = on_leave;
    place->ctx = ctx;
    hps_lock_release(&place->table->lock);
}

bool hps_place_is_leaving(const struct hps_place *place)
{
    return atomic_load_explicit(&place->leaving, memory_order_acquire);
}

bool hps_place_leaves_at_once(const struct hps_place *place)
{
    return place->short_calls;
}

static void set_rank(struct hps_place *place, enum rank rank, uint64_t now_us)
{
    if (place != NULL) {
        atomic_store_explicit(&place->rank, (int)rank, memory_order_relaxed);
        atomic_store_explicit(&place->since_us, now_us, memory_order_relaxed);
    }
}

void hps_place_busy(struct hps_place *place, uint64_t now_us)
{
    set_rank(place, RANK_CALLS, now_us);
}

void hps_place_idle(struct hps_place *place, uint64_t now_us)
{
    set_rank(place, RANK_IDLE, now_us);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_place_table *hps_places_new(const struct hps_place_limits *limits,
                                       struct hps_metric *const *displaced)
{
    struct hps_place_table *table = hps_calloc(1, sizeof *table);

    if (table != NULL) {
        hps_lock_init(&table->lock, HPS_LOCK_PLACES);
        table->limits = *limits;
        if (displaced != NULL) {
            memcpy(table->displaced, displaced, sizeof table->displaced);
        }
        table->is_owned = true;
    }
    return table;
}

void hps_places_free(struct hps_place_table *table)
{
    if (table != NULL) {
        hps_lock_acquire(&table->lock);
        table->is_owned = false;
        release(table);
    }
}

void hps_places_limits_set(struct hps_place_table *table, const struct hps_place_limits *limits)
{
    hps_lock_acquire(&table->lock);
    table->limits = *limits;
    hps_lock_release(&table->lock);
}

unsigned hps_places_taken(struct hps_place_table *table)
{
    hps_lock_acquire(&table->lock);
    unsigned n = table->n;
    hps_lock_release(&table->lock);
    return n;
}
