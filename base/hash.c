/* SPDX-License-Identifier: Apache-2.0
 *
 * The per-process secret for hashes of client data. Any thread.
 */
#include "base/hash.h"

#include <pthread.h>
#include <sys/random.h>

#include "base/clock.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t secret;

static void make_secret(void)
{
    if (getrandom(&secret, sizeof(secret), 0) != (ssize_t)sizeof(secret)) {
        secret = hps_mix64(hps_clock_us());
    }
}

uint64_t hps_hash_secret(void)
{
    pthread_once(&once, make_secret);
    return secret;
}
