/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges: growing, shrinking, and waiting for reply memory. Counters are atomic; what waits is
 * behind the lock. A thread that frees memory looks for charges that wait only if there are any.
 * No update is lost: a charge is counted in n_waiting before it looks at the counters for the last
 * time, and memory is returned before n_waiting is read. Any thread.
 */
#include "net/limits.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/heap.h"
#include "net/limits_internal.h"

enum {
    SMALL_REQUEST_BYTES = 64 * 1024,
    SMALL_REPLY_PART = 64, /* max / 64 */
    RESERVED_PART = 8,     /* for small requests, and for small replies that pass large ones */
    OPERATORS_PART = 16,
    EXAMINED_MAX = 64, /* accounts examined in one search, if their first charge does not fit */
};

const char *hps_limit_name(enum hps_limit limit)
{
    return limit == HPS_LIMIT_REQUESTS ? "request_bytes" : "reply_bytes";
}

const char *hps_limit_scope_name(enum hps_limit_scope scope)
{
    static const char *const names[HPS_SCOPE_COUNT] = {"connection", "identity", "address", "all"};

    HPS_ASSERT(scope < HPS_SCOPE_COUNT);
    return names[scope];
}

/* ---- limits of accounts ---------------------------------------------------------------------- */

/* NULL: none, or counted as another account. */
static struct hps_account *account_of(const struct hps_charge *charge, enum hps_limit_scope scope)
{
    struct hps_account *address = charge->connection->address;

    switch (scope) {
    case HPS_SCOPE_CONNECTION:
        return charge->connection;
    case HPS_SCOPE_IDENTITY:
        return charge->identity != address ? charge->identity : NULL;
    case HPS_SCOPE_ADDRESS:
        return address;
    case HPS_SCOPE_ALL:
    case HPS_SCOPE_COUNT:
        break;
    }
    return NULL;
}

static _Atomic uint64_t *used_of(const struct hps_charge *charge, enum hps_limit limit,
                                 enum hps_limit_scope scope)
{
    struct hps_account *account = account_of(charge, scope);

    if (scope == HPS_SCOPE_ALL) {
        return &charge->connection->limits->used[limit];
    }
    return account != NULL ? &account->used[limit] : NULL;
}

static bool has_quota(const struct hps_charge *charge, enum hps_limit limit,
                      const struct hps_account *account)
{
    return limit == HPS_LIMIT_REPLIES && charge->quota > 0 && account == charge->identity;
}

/* The limit of a scope after `charge` has grown by `bytes`. */
static uint64_t limit_of(const struct hps_charge *charge, enum hps_limit limit,
                         enum hps_limit_scope scope, uint64_t bytes)
{
    const struct hps_limits *limits = charge->connection->limits;
    bool is_operator = charge->connection->is_operator;
    uint64_t max = atomic_load(&limits->max[limit]);
    uint64_t all = atomic_load(&limits->used[limit]) + bytes;
    double share = atomic_load(&limits->share);

    if (scope == HPS_SCOPE_CONNECTION) {
        return atomic_load(&limits->connection_max[limit]);
    }
    if (is_operator) {
        return scope == HPS_SCOPE_ALL ? max + max / OPERATORS_PART : UINT64_MAX;
    }
    if (limit == HPS_LIMIT_REQUESTS && charge->held[limit] + bytes > SMALL_REQUEST_BYTES) {
        max -= max / RESERVED_PART;
    }
    if (scope == HPS_SCOPE_ALL) {
        return max;
    }
    double part = share > 0 ? (double)(max > all ? max - all : 0) / share : 1e18;
    uint64_t most = part < 1e18 ? (uint64_t)part : UINT64_MAX;
    return has_quota(charge, limit, account_of(charge, scope)) && charge->quota < most
               ? charge->quota
               : most;
}

/* The first scope from `from` on that has no room for `bytes` more; COUNT: none. */
static enum hps_limit_scope blocked_by(const struct hps_charge *charge, enum hps_limit limit,
                                       enum hps_limit_scope from, uint64_t bytes)
{
    uint64_t held = atomic_load(&charge->held[limit]);

    for (enum hps_limit_scope scope = from; scope < HPS_SCOPE_COUNT; scope++) {
        const _Atomic uint64_t *counter = used_of(charge, limit, scope);
        uint64_t used = counter != NULL ? atomic_load(counter) : held;
        uint64_t most = used != held ? limit_of(charge, limit, scope, bytes) : UINT64_MAX;
        if (used > most || bytes > most - used) {
            return scope;
        }
    }
    return HPS_SCOPE_COUNT;
}

static bool exceeds_quota(const struct hps_charge *charge, uint64_t bytes)
{
    if (charge->identity == NULL || charge->quota == 0) {
        return false;
    }
    uint64_t used = hps_account_used(charge->identity, HPS_LIMIT_REPLIES);
    return used != atomic_load(&charge->held[HPS_LIMIT_REPLIES]) &&
           (used > charge->quota || bytes > charge->quota - used);
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* The text of every refusal. wait_us: how long the charge has waited. */
static hps_status explain(const struct hps_charge *charge, enum hps_limit limit,
                          enum hps_limit_scope scope, uint64_t bytes, uint64_t wait_us,
                          struct hps_error *err)
{
    static const struct {
        const char *option, *advice;
    } texts[HPS_LIMIT_COUNT][HPS_SCOPE_COUNT] = {
        [HPS_LIMIT_REQUESTS] = {{"8 x request_bytes_max",
                                 "send fewer requests at a time on one connection"},
                                {"peer_share", "send fewer requests at a time"},
                                {"peer_share", "send fewer requests at a time"},
                                {"request_bytes_in_flight", "retry later"}},
        [HPS_LIMIT_REPLIES] = {
            {"connection_reply_bytes", "read replies faster, or ask for fewer at a time"},
            {"peer_share", "read replies before you send more requests"},
            {"peer_share", "read replies before you send more requests"},
            {"reply_bytes_in_flight", "retry later"}}};
    const struct hps_account *account = account_of(charge, scope);
    bool quota = limit == HPS_LIMIT_REPLIES && scope != HPS_SCOPE_CONNECTION &&
                 scope != HPS_SCOPE_ALL && exceeds_quota(charge, bytes);
    char waited[48] = "";

    if (wait_us > 0) {
        (void)snprintf(waited, sizeof(waited), " within %" PRIu64 " ms", wait_us / 1000);
    }
    return hps_error_set(err, HPS_EXHAUSTED,
                         "rejected: no memory for %" PRIu64 " bytes of %s%s; %.200s holds %" PRIu64
                         ", the limit is %" PRIu64 " (%s); %s",
                         bytes, limit == HPS_LIMIT_REQUESTS ? "requests" : "replies", waited,
                         account != NULL ? account->name : "the server",
                         atomic_load(used_of(charge, limit, scope)),
                         quota ? charge->quota : limit_of(charge, limit, scope, bytes),
                         quota ? "reply_bytes of its rule" : texts[limit][scope].option,
                         quota ? "retry later" : texts[limit][scope].advice);
}

static hps_status refuse(const struct hps_charge *charge, enum hps_limit limit,
                         enum hps_limit_scope scope, uint64_t bytes, struct hps_error *err)
{
    struct hps_metric *refused = charge->connection->limits->metrics.refused[limit][scope];

    if (refused != NULL) {
        hps_metric_add(refused, 1);
    }
    return explain(charge, limit, scope, bytes, 0, err);
}

/* ---- counting -------------------------------------------------------------------------------- */

static void add(struct hps_charge *charge, enum hps_limit limit, enum hps_limit_scope from,
                uint64_t bytes)
{
    for (enum hps_limit_scope scope = from; scope < HPS_SCOPE_COUNT; scope++) {
        _Atomic uint64_t *counter = used_of(charge, limit, scope);
        if (counter != NULL) {
            atomic_fetch_add(counter, bytes);
        }
    }
    atomic_fetch_add(&charge->held[limit], bytes);
}

static void subtract(struct hps_charge *charge, enum hps_limit limit, uint64_t bytes)
{
    HPS_ASSERT(atomic_load(&charge->held[limit]) >= bytes);
    atomic_fetch_sub(&charge->held[limit], bytes);
    for (enum hps_limit_scope scope = 0; scope < HPS_SCOPE_COUNT; scope++) {
        _Atomic uint64_t *counter = used_of(charge, limit, scope);
        if (counter != NULL) {
            uint64_t before = atomic_fetch_sub(counter, bytes);
            HPS_ASSERT(before >= bytes);
        }
    }
}

/* ---- replies that wait; lock held ------------------------------------------------------------ */

static enum limits_size size_of(const struct hps_charge *charge)
{
    uint64_t max = atomic_load(&charge->connection->limits->max[HPS_LIMIT_REPLIES]);

    return charge->wanted <= max / SMALL_REPLY_PART ? LIMITS_SMALL : LIMITS_LARGE;
}

static struct hps_account *payer_of(const struct hps_charge *charge)
{
    return charge->identity != NULL ? charge->identity : charge->connection->address;
}

static void enqueue(struct hps_charge *charge)
{
    struct hps_limits *limits = charge->connection->limits;

    charge->size = size_of(charge);
    charge->state = HPS_CHARGE_WAITS;
    struct limits_line *line = &payer_of(charge)->lines[charge->size];
    if (TAILQ_EMPTY(&line->charges)) {
        TAILQ_INSERT_TAIL(&limits->rings[charge->size], line, link);
        limits->n_accounts[charge->size]++;
    }
    TAILQ_INSERT_TAIL(&line->charges, charge, link);
}

static void dequeue(struct hps_charge *charge)
{
    struct hps_limits *limits = charge->connection->limits;
    struct limits_line *line = &payer_of(charge)->lines[charge->size];

    TAILQ_REMOVE(&line->charges, charge, link);
    if (TAILQ_EMPTY(&line->charges)) {
        TAILQ_REMOVE(&limits->rings[charge->size], line, link);
        limits->n_accounts[charge->size]--;
    }
}

/* Charges that waited for this connection go on if it has room for them. It counts their bytes from
 * now on, so that they need not come back. */
static void leave_connection(struct hps_account *connection)
{
    struct limits_charges *charges = &connection->lines[0].charges;
    struct hps_charge *charge;

    while ((charge = TAILQ_FIRST(charges)) != NULL) {
        uint64_t used = atomic_load(&connection->used[HPS_LIMIT_REPLIES]); /* after n_waiting */
        uint64_t most = atomic_load(&connection->limits->connection_max[HPS_LIMIT_REPLIES]);
        if (used != atomic_load(&charge->held[HPS_LIMIT_REPLIES]) &&
            (used > most || charge->wanted > most - used)) {
            return;
        }
        TAILQ_REMOVE(charges, charge, link);
        atomic_fetch_sub(&connection->n_waiting, 1);
        atomic_fetch_add(&connection->used[HPS_LIMIT_REPLIES], charge->wanted);
        enqueue(charge);
    }
}

static enum hps_limit_scope waits_for(const struct hps_charge *charge)
{
    return charge->state == HPS_CHARGE_WAITS_CONNECTION
               ? HPS_SCOPE_CONNECTION
               : blocked_by(charge, HPS_LIMIT_REPLIES, HPS_SCOPE_IDENTITY, charge->wanted);
}

/* A large charge waits for the memory of all clients. A small one of `bytes` may pass it, unless
 * charges that passed hold an eighth of the memory, or the large one would fit without them. */
static bool may_pass(const struct hps_limits *limits, const struct hps_charge *large,
                     uint64_t bytes)
{
    uint64_t max = atomic_load(&limits->max[HPS_LIMIT_REPLIES]);
    uint64_t others = atomic_load(&limits->used[HPS_LIMIT_REPLIES]) - limits->passed;
    bool keep_it_out = others == 0 || (others <= max && large->wanted <= max - others);

    return !keep_it_out && limits->passed + bytes <= max / RESERVED_PART;
}

/* The first charges of the accounts, in turns, are granted if they fit, and added to `granted`. */
static void grant_size(struct hps_limits *limits, enum limits_size size,
                       const struct hps_charge *large, struct limits_charges *granted)
{
    unsigned n_left = EXAMINED_MAX;

    for (unsigned n = limits->n_accounts[size]; n > 0 && n_left > 0; n--, n_left--) {
        struct limits_line *line = TAILQ_FIRST(&limits->rings[size]);
        struct hps_charge *charge = TAILQ_FIRST(&line->charges);
        enum hps_limit_scope scope = waits_for(charge);
        if (size == LIMITS_LARGE && scope == HPS_SCOPE_ALL) {
            return; /* it stays the first */
        }
        TAILQ_REMOVE(&limits->rings[size], line, link);
        TAILQ_INSERT_TAIL(&limits->rings[size], line, link);
        if (scope != HPS_SCOPE_COUNT ||
            (large != NULL && !may_pass(limits, large, charge->wanted))) {
            continue;
        }
        dequeue(charge);
        add(charge, HPS_LIMIT_REPLIES, HPS_SCOPE_IDENTITY, charge->wanted);
        charge->state = HPS_CHARGE_IDLE;
        if (large != NULL) {
            charge->passed += charge->wanted;
            limits->passed += charge->wanted;
        }
        atomic_fetch_sub(&limits->n_waiting, 1);
        TAILQ_INSERT_TAIL(granted, charge, link);
        n = limits->n_accounts[size] + 1; /* all accounts again */
        n_left = EXAMINED_MAX;
    }
}

/* Grants what fits now. Sets *granted to these charges. */
static void grant(struct hps_limits *limits, struct limits_charges *granted)
{
    const struct hps_charge *large = NULL;

    TAILQ_INIT(granted);
    grant_size(limits, LIMITS_LARGE, NULL, granted);
    if (!TAILQ_EMPTY(&limits->rings[LIMITS_LARGE])) {
        large = TAILQ_FIRST(&TAILQ_FIRST(&limits->rings[LIMITS_LARGE])->charges);
        large = waits_for(large) == HPS_SCOPE_ALL ? large : NULL;
    }
    grant_size(limits, LIMITS_SMALL, large, granted);
}

/* Lock not held. `but`: the caller's own charge, which needs no callback. */
static void tell(struct limits_charges *granted, const struct hps_charge *but)
{
    struct hps_charge *charge;

    while ((charge = TAILQ_FIRST(granted)) != NULL) {
        TAILQ_REMOVE(granted, charge, link); /* before its owner has it */
        if (charge != but) {
            charge->on_granted(charge->ctx);
        }
    }
}

/* ---- charges --------------------------------------------------------------------------------- */

hps_status hps_charge_open(struct hps_charge *charge, struct hps_account *connection,
                           struct hps_error *err)
{
    HPS_ASSERT(charge->connection == NULL);
    if (connection == NULL) {
        return HPS_OK;
    }
    charge->connection = limits_account_ref(connection);
    hps_status status = hps_charge_grow(charge, HPS_LIMIT_REQUESTS, HPS_CALL_BYTES, err);
    if (status != HPS_OK) {
        hps_charge_close(charge);
    }
    return status;
}

hps_status hps_charge_identify(struct hps_charge *charge, struct hps_account *identity,
                               uint64_t quota, struct hps_error *err)
{
    uint64_t held = atomic_load(&charge->held[HPS_LIMIT_REQUESTS]);

    if (charge->connection == NULL) {
        return HPS_OK;
    }
    HPS_ASSERT(charge->identity == NULL && charge->state == HPS_CHARGE_IDLE);
    HPS_ASSERT(atomic_load(&charge->held[HPS_LIMIT_REPLIES]) == 0);
    charge->quota = quota;
    charge->identity = identity;
    if (identity == charge->connection->address) {
        return HPS_OK;
    }
    uint64_t used = hps_account_used(identity, HPS_LIMIT_REQUESTS);
    uint64_t most = limit_of(charge, HPS_LIMIT_REQUESTS, HPS_SCOPE_IDENTITY, 0);
    if (used > 0 && (used > most || held > most - used)) {
        hps_status status = refuse(charge, HPS_LIMIT_REQUESTS, HPS_SCOPE_IDENTITY, held, err);
        charge->identity = NULL;
        return status;
    }
    atomic_fetch_add(&identity->used[HPS_LIMIT_REQUESTS], held);
    return HPS_OK;
}

void hps_charge_quota_set(struct hps_charge *charge, uint64_t quota)
{
    atomic_store(&charge->quota, quota);
}

hps_status hps_charge_grow(struct hps_charge *charge, enum hps_limit limit, uint64_t bytes,
                           struct hps_error *err)
{
    if (charge->connection == NULL) {
        return HPS_OK;
    }
    enum hps_limit_scope from =
        limit == HPS_LIMIT_REPLIES ? HPS_SCOPE_IDENTITY : HPS_SCOPE_CONNECTION;
    enum hps_limit_scope scope = blocked_by(charge, limit, from, bytes);
    if (scope != HPS_SCOPE_COUNT) {
        return refuse(charge, limit, scope, bytes, err);
    }
    add(charge, limit, HPS_SCOPE_CONNECTION, bytes);
    return HPS_OK;
}

void hps_charge_shrink(struct hps_charge *charge, enum hps_limit limit, uint64_t bytes)
{
    if (charge->connection == NULL) {
        return;
    }
    struct hps_limits *limits = charge->connection->limits;
    subtract(charge, limit, bytes);
    if (limit != HPS_LIMIT_REPLIES ||
        (atomic_load(&limits->n_waiting) == 0 && charge->passed == 0)) {
        return;
    }
    hps_lock_acquire(&limits->lock);
    uint64_t passed = charge->passed < bytes ? charge->passed : bytes;
    charge->passed -= passed;
    limits->passed -= passed;
    leave_connection(charge->connection);
    struct limits_charges granted;
    grant(limits, &granted);
    hps_lock_release(&limits->lock);
    tell(&granted, NULL);
}

hps_status hps_charge_wait(struct hps_charge *charge, uint64_t bytes, struct hps_error *err)
{
    if (charge->connection == NULL) {
        return HPS_OK;
    }
    struct hps_limits *limits = charge->connection->limits;
    HPS_ASSERT(charge->on_granted != NULL && charge->state == HPS_CHARGE_IDLE);
    if (exceeds_quota(charge, bytes)) {
        bool same = charge->identity == charge->connection->address;
        return refuse(charge, HPS_LIMIT_REPLIES, same ? HPS_SCOPE_ADDRESS : HPS_SCOPE_IDENTITY,
                      bytes, err);
    }
    charge->wanted = bytes;
    if (atomic_load(&limits->n_waiting) == 0 && size_of(charge) == LIMITS_SMALL &&
        blocked_by(charge, HPS_LIMIT_REPLIES, HPS_SCOPE_CONNECTION, bytes) == HPS_SCOPE_COUNT) {
        add(charge, HPS_LIMIT_REPLIES, HPS_SCOPE_CONNECTION, bytes);
        return HPS_OK;
    }
    hps_lock_acquire(&limits->lock);
    atomic_fetch_add(&limits->n_waiting, 1);
    charge->state = HPS_CHARGE_WAITS_CONNECTION;
    atomic_fetch_add(&charge->connection->n_waiting, 1);
    TAILQ_INSERT_TAIL(&charge->connection->lines[0].charges, charge, link);
    leave_connection(charge->connection);
    struct limits_charges granted;
    grant(limits, &granted);
    bool granted_now = charge->state == HPS_CHARGE_IDLE;
    hps_lock_release(&limits->lock);
    tell(&granted, granted_now ? charge : NULL);
    return granted_now ? HPS_OK : HPS_AGAIN;
}

bool hps_charge_cancel(struct hps_charge *charge, uint64_t wait_us, enum hps_limit_scope *out_scope,
                       struct hps_error *err)
{
    if (charge->connection == NULL) {
        return false;
    }
    struct hps_limits *limits = charge->connection->limits;
    hps_lock_acquire(&limits->lock);
    if (charge->state == HPS_CHARGE_IDLE) {
        hps_lock_release(&limits->lock);
        return false;
    }
    enum hps_limit_scope scope = waits_for(charge);
    scope = scope != HPS_SCOPE_COUNT ? scope : HPS_SCOPE_ALL; /* only its turn had not come */
    hps_ignore(explain(charge, HPS_LIMIT_REPLIES, scope, charge->wanted, wait_us, err));
    if (charge->state == HPS_CHARGE_WAITS_CONNECTION) {
        TAILQ_REMOVE(&charge->connection->lines[0].charges, charge, link);
        atomic_fetch_sub(&charge->connection->n_waiting, 1);
    } else {
        dequeue(charge);
        atomic_fetch_sub(&charge->connection->used[HPS_LIMIT_REPLIES], charge->wanted);
    }
    charge->state = HPS_CHARGE_IDLE;
    atomic_fetch_sub(&limits->n_waiting, 1);
    leave_connection(charge->connection);
    struct limits_charges granted;
    grant(limits, &granted);
    hps_lock_release(&limits->lock);
    if (out_scope != NULL) {
        *out_scope = scope;
    }
    tell(&granted, NULL);
    return true;
}

enum hps_limit_scope hps_charge_short_of(const struct hps_charge *charge, enum hps_limit limit,
                                         uint64_t bytes)
{
    enum hps_limit_scope from =
        limit == HPS_LIMIT_REPLIES ? HPS_SCOPE_IDENTITY : HPS_SCOPE_CONNECTION;

    if (charge->connection == NULL) {
        return HPS_SCOPE_COUNT;
    }
    return blocked_by(charge, limit, HPS_SCOPE_ALL, bytes) == HPS_SCOPE_ALL
               ? HPS_SCOPE_ALL
               : blocked_by(charge, limit, from, bytes);
}

bool hps_charge_arena(void *ctx, size_t bytes)
{
    return hps_charge_grow(ctx, HPS_LIMIT_REQUESTS, bytes, NULL) == HPS_OK;
}

void hps_charge_close(struct hps_charge *charge)
{
    struct hps_account *connection = charge->connection;

    if (connection == NULL) {
        return;
    }
    HPS_ASSERT(charge->state == HPS_CHARGE_IDLE);
    for (enum hps_limit limit = 0; limit < HPS_LIMIT_COUNT; limit++) {
        uint64_t held = atomic_load(&charge->held[limit]);
        if (held > 0) {
            hps_charge_shrink(charge, limit, held);
        }
    }
    charge->connection = NULL;
    charge->identity = NULL;
    hps_account_unref(connection);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void set_options(struct hps_limits *limits, const struct hps_limits_options *options)
{
    for (unsigned i = 0; i < HPS_LIMIT_COUNT; i++) {
        atomic_store(&limits->max[i], options->max[i]);
        atomic_store(&limits->connection_max[i], options->connection_max[i]);
    }
    atomic_store(&limits->share, options->share);
}

struct hps_limits *hps_limits_new(const struct hps_limits_options *options,
                                  const struct hps_limits_metrics *metrics)
{
    struct hps_limits *limits = hps_calloc(1, sizeof(*limits));

    if (limits == NULL) {
        return NULL;
    }
    if (metrics != NULL) {
        limits->metrics = *metrics;
    }
    hps_lock_init(&limits->lock, HPS_LOCK_LIMITS);
    TAILQ_INIT(&limits->rings[LIMITS_LARGE]);
    TAILQ_INIT(&limits->rings[LIMITS_SMALL]);
    set_options(limits, options);
    return limits;
}

void hps_limits_set(struct hps_limits *limits, const struct hps_limits_options *options)
{
    set_options(limits, options);
    hps_lock_acquire(&limits->lock);
    struct limits_charges granted;
    grant(limits, &granted);
    hps_lock_release(&limits->lock);
    tell(&granted, NULL);
}

void hps_limits_free(struct hps_limits *limits)
{
    if (limits != NULL) {
        limits_accounts_free(limits);
        hps_lock_fini(&limits->lock);
        hps_free(limits);
    }
}

uint64_t hps_limits_used(const struct hps_limits *limits, enum hps_limit limit)
{
    return atomic_load_explicit(&limits->used[limit], memory_order_relaxed);
}

static void set_gauge(struct hps_metric *gauge, uint64_t value)
{
    if (gauge != NULL) {
        hps_metric_set(gauge, (double)value);
    }
}

void hps_limits_export(struct hps_limits *limits)
{
    for (enum hps_limit limit = 0; limit < HPS_LIMIT_COUNT; limit++) {
        set_gauge(limits->metrics.used[limit], hps_limits_used(limits, limit));
        set_gauge(limits->metrics.max[limit], atomic_load(&limits->max[limit]));
        set_gauge(limits->metrics.largest[limit], limits_accounts_largest(limits, limit));
    }
    set_gauge(limits->metrics.in_flight, hps_limits_used(limits, HPS_LIMIT_REPLIES));
    set_gauge(limits->metrics.waiting, atomic_load(&limits->n_waiting));
}
