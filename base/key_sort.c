/* SPDX-License-Identifier: Apache-2.0
 *
 * Radix sort of keys, for sorted multi-gets and scans. Any thread.
 */
#include "base/key_sort.h"

#include <stdbool.h>

#include "base/assert.h"

enum { INSERTION_MAX = 24, TOP_BIT = 63 };

static void swap(hps_key *keys, uint32_t *slots, size_t a, size_t b)
{
    hps_key key = keys[a];
    keys[a] = keys[b];
    keys[b] = key;
    if (slots != NULL) {
        uint32_t slot = slots[a];
        slots[a] = slots[b];
        slots[b] = slot;
    }
}

static void insertion_sort(hps_key *keys, uint32_t *slots, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        hps_key key = keys[i];
        uint32_t slot = slots != NULL ? slots[i] : 0;
        size_t j = i;
        for (; j > 0 && keys[j - 1] > key; j--) {
            keys[j] = keys[j - 1];
            if (slots != NULL) {
                slots[j] = slots[j - 1];
            }
        }
        keys[j] = key;
        if (slots != NULL) {
            slots[j] = slot;
        }
    }
}

/* Move keys with `bit` clear to the front; returns their number. */
static size_t partition(hps_key *keys, uint32_t *slots, size_t n, int bit)
{
    size_t lo = 0;
    size_t hi = n;
    while (lo < hi) {
        if (((keys[lo] >> bit) & 1) == 0) {
            lo++;
        } else {
            swap(keys, slots, lo, --hi);
        }
    }
    return lo;
}

static void sort_from(hps_key *keys, uint32_t *slots, size_t n, int bit)
{
    while (n > INSERTION_MAX && bit >= 0) {
        size_t n_low = partition(keys, slots, n, bit);
        bit--;
        sort_from(keys, slots, n_low, bit);
        keys += n_low;
        slots = slots != NULL ? slots + n_low : NULL;
        n -= n_low;
    }
    insertion_sort(keys, slots, bit >= 0 ? n : 0);
}

static bool is_sorted(const hps_key *keys, size_t n)
{
    size_t i = 1;

    while (i < n && keys[i - 1] <= keys[i]) {
        i++;
    }
    return i >= n;
}

void hps_key_sort(hps_key *keys, uint32_t *slots, size_t n)
{
    sort_from(keys, slots, n, TOP_BIT);
    HPS_DEBUG_ASSERT(is_sorted(keys, n));
}
