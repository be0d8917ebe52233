/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by limits_account.c (accounts by name) and limits.c (charges, and replies that wait).
 */
#ifndef HPS_NET_LIMITS_INTERNAL_H
#define HPS_NET_LIMITS_INTERNAL_H

#include "base/lock.h"
#include "net/limits.h"

enum { LIMITS_BUCKETS = 1024 };

/* The sizes of replies that wait, in the order in which they are granted. */
enum limits_size { LIMITS_LARGE, LIMITS_SMALL, LIMITS_SIZES };

TAILQ_HEAD(limits_charges, hps_charge);

/* Charges that wait, in order, and the link of their account in a ring. A connection uses only the
 * first line, for charges that wait for it, and is in no ring. */
struct limits_line {
    struct limits_charges charges;
    TAILQ_ENTRY(limits_line) link;
};

struct hps_account {
    struct hps_limits *limits;
    struct hps_account *address; /* of a connection, referenced; NULL: the account has a name */
    bool is_operator;            /* a connection of the admin listener */
    atomic_uint refs;            /* of an account with a name: changed under the lock */
    _Atomic uint64_t used[HPS_LIMIT_COUNT];
    struct limits_line lines[LIMITS_SIZES]; /* under the lock */
    atomic_uint n_waiting;                  /* of a connection: charges in its line */
    /* The time at which the calls so far would end at an even pace: the "theoretical arrival time"
     * of the generic cell rate algorithm, by hps_clock_us, in units of 1/1024 us. */
    _Atomic uint64_t paced_to;
    struct hps_account *bucket_next; /* under the lock */
    char name[];
};

struct hps_limits {
    _Atomic uint64_t max[HPS_LIMIT_COUNT], connection_max[HPS_LIMIT_COUNT];
    _Atomic double share;
    _Atomic uint64_t used[HPS_LIMIT_COUNT];
    atomic_uint n_waiting;
    struct hps_limits_metrics metrics;
    struct hps_lock lock;                          /* protects the fields below */
    uint64_t passed;                               /* of all charges */
    TAILQ_HEAD(, limits_line) rings[LIMITS_SIZES]; /* of accounts with charges that wait, in turn */
    unsigned n_accounts[LIMITS_SIZES];             /* in each ring */
    struct hps_account *buckets[LIMITS_BUCKETS];
    unsigned swept; /* the bucket that is swept next */
};

/* Frees the accounts with names, which must have no references. */
void limits_accounts_free(struct hps_limits *limits);
/* The largest use of an account with a name. */
uint64_t limits_accounts_largest(struct hps_limits *limits, enum hps_limit limit);
/* One more reference to the account of a connection. */
struct hps_account *limits_account_ref(struct hps_account *connection);

#endif
