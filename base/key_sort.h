/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorting of keys in place, without memory and without a bad case that a client could send: binary
 * radix exchange, at most 64 levels deep. Any thread.
 */
#ifndef HPS_BASE_KEY_SORT_H
#define HPS_BASE_KEY_SORT_H

#include <stddef.h>

#include "base/types.h"

/* Sort keys[n] ascending (unsigned), moving slots[n] along; slots may be NULL. */
void hps_key_sort(hps_key *keys, uint32_t *slots, size_t n);

#endif
