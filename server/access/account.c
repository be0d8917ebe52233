/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts by name. The table is behind a lock, taken when a connection begins or a token is seen
 * for the first time; what calls change are two atomics.
 */
#include "server/access/account.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/lock.h"

enum { N_BUCKETS = 1024, BURST_US = 1000 * 1000, CLOCK_SHIFT = 10 };

struct hps_account {
    struct hps_account *next;
    struct hps_accounts *accounts;
    unsigned refs; /* under the lock */
    /* When the requests so far would be over at an even pace: the "theoretical arrival time" of the
     * generic cell rate algorithm, by hps_clock_us, in units of 1/1024 us. */
    _Atomic uint64_t paced_to;
    _Atomic uint64_t bytes; /* in flight */
    char who[];
};

struct hps_accounts {
    struct hps_lock lock; /* over all of this, and the counts of references */
    struct hps_account *buckets[N_BUCKETS];
    unsigned swept; /* the bucket that is swept next */
};

struct hps_accounts *hps_accounts_new(void)
{
    struct hps_accounts *accounts = hps_calloc(1, sizeof(*accounts));
    if (accounts != NULL) {
        hps_lock_init(&accounts->lock, HPS_LOCK_ACCOUNTS);
    }
    return accounts;
}

void hps_accounts_free(struct hps_accounts *accounts)
{
    if (accounts == NULL) {
        return;
    }
    for (unsigned i = 0; i < N_BUCKETS; i++) {
        while (accounts->buckets[i] != NULL) {
            struct hps_account *account = accounts->buckets[i];
            HPS_ASSERT(account->refs == 0);
            accounts->buckets[i] = account->next;
            hps_free(account);
        }
    }
    hps_lock_fini(&accounts->lock);
    hps_free(accounts);
}

static struct hps_account **bucket_of(struct hps_accounts *accounts, const char *who)
{
    return &accounts->buckets[hps_hash_bytes(who, strlen(who), hps_hash_secret()) % N_BUCKETS];
}

/* Who opens a connection for each request has no more of them for that: an account stays until its
 * requests are paid for. */
static bool is_over(const struct hps_account *account)
{
    return account->refs == 0 && atomic_load_explicit(&account->paced_to, memory_order_relaxed) <=
                                     hps_clock_us() << CLOCK_SHIFT;
}

/* Under the lock. */
static void sweep(struct hps_account **at)
{
    while (*at != NULL) {
        struct hps_account *account = *at;
        if (is_over(account)) {
            *at = account->next;
            hps_free(account);
        } else {
            at = &account->next;
        }
    }
}

struct hps_account *hps_account_get(struct hps_accounts *accounts, const char *who)
{
    size_t size = strlen(who) + 1;
    struct hps_account **bucket = bucket_of(accounts, who);
    hps_lock_acquire(&accounts->lock);
    sweep(&accounts->buckets[accounts->swept++ % N_BUCKETS]);
    struct hps_account *account = *bucket;
    while (account != NULL && strcmp(account->who, who) != 0) {
        account = account->next;
    }
    if (account == NULL) {
        account = hps_calloc(1, sizeof(*account) + size);
        if (account != NULL) {
            memcpy(account->who, who, size);
            account->accounts = accounts;
            account->next = *bucket;
            *bucket = account;
        }
    }
    if (account != NULL) {
        account->refs++;
    }
    hps_lock_release(&accounts->lock);
    return account;
}

void hps_account_unref(struct hps_account *account)
{
    if (account == NULL) {
        return;
    }
    struct hps_accounts *accounts = account->accounts;
    hps_lock_acquire(&accounts->lock);
    HPS_ASSERT(account->refs > 0);
    account->refs--;
    if (account->refs == 0) {
        HPS_ASSERT(atomic_load_explicit(&account->bytes, memory_order_relaxed) == 0);
        sweep(bucket_of(accounts, account->who));
    }
    hps_lock_release(&accounts->lock);
}

bool hps_account_take(struct hps_account *account, uint32_t requests_per_s, uint64_t now_us,
                      uint64_t *out_retry_us)
{
    HPS_ASSERT(requests_per_s > 0);
    const uint64_t now = now_us << CLOCK_SHIFT;
    const uint64_t burst = (uint64_t)BURST_US << CLOCK_SHIFT;
    uint64_t step = burst / requests_per_s;
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

bool hps_account_charge(struct hps_account *account, uint64_t limit_bytes, uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(&account->bytes, memory_order_relaxed);

    do {
        if (before > 0 && (before >= limit_bytes || bytes > limit_bytes - before)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&account->bytes, &before, before + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void hps_account_discharge(struct hps_account *account, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&account->bytes, bytes, memory_order_relaxed);
    HPS_ASSERT(before >= bytes);
}
