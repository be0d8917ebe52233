/* SPDX-License-Identifier: Apache-2.0
 *
 * In-place sort of keys by binary radix exchange, at most 64 levels deep. It allocates no memory,
 * and no choice of keys makes it slow. Any thread.
 */
#ifndef HPS_BASE_KEY_SORT_H
#define HPS_BASE_KEY_SORT_H

#include <stddef.h>

#include "base/types.h"

/* Sort keys[n] in ascending order (unsigned), and reorder slots[n] in the same way. slots may be
 * NULL. */
void hps_key_sort(hps_key *keys, uint32_t *slots, size_t n);

#endif
