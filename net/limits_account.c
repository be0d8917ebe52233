/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts. Those with names are in a table behind the lock, which is taken when a connection
 * begins or a token is seen for the first time. Any thread.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "net/limits_internal.h"

enum { BURST_US = 1000 * 1000, CLOCK_SHIFT = 10, NAME_BYTES = 288 };

static struct hps_account **bucket_of(struct hps_limits *limits, const char *name)
{
    return &limits->buckets[hps_hash_bytes(name, strlen(name), hps_hash_secret()) % LIMITS_BUCKETS];
}

static struct hps_account *account_new(struct hps_limits *limits, const char *name)
{
    size_t size = strlen(name) + 1;
    struct hps_account *account = hps_calloc(1, sizeof(*account) + size);

    if (account != NULL) {
        memcpy(account->name, name, size);
        account->limits = limits;
        atomic_init(&account->refs, 1);
        TAILQ_INIT(&account->lines[LIMITS_LARGE].charges);
        TAILQ_INIT(&account->lines[LIMITS_SMALL].charges);
    }
    return account;
}

static void account_free(struct hps_account *account)
{
    for (unsigned i = 0; i < HPS_LIMIT_COUNT; i++) {
        HPS_ASSERT(account->used[i] == 0);
    }
    HPS_ASSERT(TAILQ_EMPTY(&account->lines[LIMITS_LARGE].charges));
    HPS_ASSERT(TAILQ_EMPTY(&account->lines[LIMITS_SMALL].charges));
    hps_free(account);
}

/* Frees accounts of a bucket that have no references. A client cannot reset its rate with a new
 * connection: its account stays until the rate has recovered. Lock held. */
static void sweep(struct hps_account **at)
{
    while (*at != NULL) {
        struct hps_account *account = *at;
        bool paced = atomic_load(&account->paced_to) > hps_clock_us() << CLOCK_SHIFT;
        if (atomic_load(&account->refs) == 0 && !paced) {
            *at = account->bucket_next;
            account_free(account);
        } else {
            at = &account->bucket_next;
        }
    }
}

/* An IPv6 host has as many addresses of its network of 64 bits as it likes. */
static const char *name_network(const char *name, char text[NAME_BYTES])
{
    static const char prefix[] = "address:";
    struct in6_addr address;
    char network[INET6_ADDRSTRLEN];

    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 ||
        inet_pton(AF_INET6, name + sizeof(prefix) - 1, &address) != 1 ||
        IN6_IS_ADDR_V4MAPPED(&address)) {
        return name;
    }
    memset(address.s6_addr + 8, 0, 8);
    (void)snprintf(text, NAME_BYTES, "%s%s/64", prefix,
                   inet_ntop(AF_INET6, &address, network, sizeof(network)));
    return text;
}

struct hps_account *hps_account_get(struct hps_limits *limits, const char *full_name)
{
    char text[NAME_BYTES];
    const char *name = name_network(full_name, text);
    struct hps_account **bucket = bucket_of(limits, name);

    hps_lock_acquire(&limits->lock);
    sweep(&limits->buckets[limits->swept++ % LIMITS_BUCKETS]);
    struct hps_account *account = *bucket;
    while (account != NULL && strcmp(account->name, name) != 0) {
        account = account->bucket_next;
    }
    if (account != NULL) {
        atomic_fetch_add(&account->refs, 1);
    } else if ((account = account_new(limits, name)) != NULL) {
        account->bucket_next = *bucket;
        *bucket = account;
    }
    hps_lock_release(&limits->lock);
    return account;
}

struct hps_account *hps_account_connection(struct hps_account *address, bool is_operator)
{
    struct hps_account *account = account_new(address->limits, "this connection");

    if (account == NULL) {
        hps_account_unref(address);
        return NULL;
    }
    account->address = address;
    account->is_operator = is_operator;
    return account;
}

struct hps_account *limits_account_ref(struct hps_account *connection)
{
    HPS_ASSERT(connection->address != NULL);
    atomic_fetch_add_explicit(&connection->refs, 1, memory_order_relaxed);
    return connection;
}

void hps_account_unref(struct hps_account *account)
{
    if (account == NULL) {
        return;
    }
    struct hps_limits *limits = account->limits;
    struct hps_account *address = account->address;

    if (address == NULL) {
        hps_lock_acquire(&limits->lock);
        HPS_ASSERT(atomic_load(&account->refs) > 0);
        if (atomic_fetch_sub(&account->refs, 1) == 1) {
            sweep(bucket_of(limits, account->name));
        }
        hps_lock_release(&limits->lock);
    } else if (atomic_fetch_sub(&account->refs, 1) == 1) {
        account_free(account);
        hps_account_unref(address);
    }
}

uint64_t hps_account_used(const struct hps_account *account, enum hps_limit limit)
{
    return atomic_load_explicit(&account->used[limit], memory_order_relaxed);
}

bool hps_account_is_full(const struct hps_account *connection)
{
    return atomic_load(&connection->n_waiting) > 0 ||
           hps_account_used(connection, HPS_LIMIT_REPLIES) >=
               atomic_load(&connection->limits->connection_max[HPS_LIMIT_REPLIES]);
}

void limits_accounts_free(struct hps_limits *limits)
{
    for (unsigned i = 0; i < LIMITS_BUCKETS; i++) {
        while (limits->buckets[i] != NULL) {
            struct hps_account *account = limits->buckets[i];
            HPS_ASSERT(atomic_load(&account->refs) == 0);
            limits->buckets[i] = account->bucket_next;
            account_free(account);
        }
    }
}

uint64_t limits_accounts_largest(struct hps_limits *limits, enum hps_limit limit)
{
    uint64_t largest = 0;

    hps_lock_acquire(&limits->lock);
    for (unsigned i = 0; i < LIMITS_BUCKETS; i++) {
        for (struct hps_account *at = limits->buckets[i]; at != NULL; at = at->bucket_next) {
            uint64_t used = hps_account_used(at, limit);
            largest = used > largest ? used : largest;
        }
    }
    hps_lock_release(&limits->lock);
    return largest;
}

bool hps_account_take(struct hps_account *account, uint32_t per_s, uint64_t now_us,
                      uint64_t *out_retry_us)
{
    HPS_ASSERT(per_s > 0);
    const uint64_t now = now_us << CLOCK_SHIFT;
    const uint64_t burst = (uint64_t)BURST_US << CLOCK_SHIFT;
    uint64_t step = burst / per_s;
    uint64_t paced_to = atomic_load_explicit(&account->paced_to, memory_order_relaxed);
    uint64_t next;

    step = step > 0 ? step : 1;
    do {
        uint64_t from = paced_to > now ? paced_to : now;
        next = from + step;
        if (next - now > burst) {
            *out_retry_us = ((next - now - burst) >> CLOCK_SHIFT) + 1;
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&account->paced_to, &paced_to, next,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}
