/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: rows in a hash map in CPU memory, within one byte budget for all its spaces.
 */
#ifndef HPS_BACKENDS_HOST_MAP_H
#define HPS_BACKENDS_HOST_MAP_H

#include "backends/store.h"

/* bytes_max: index and rows of all spaces together. out_store set only on success; close by ops. */
hps_status hps_host_map_open(uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err) HPS_MUST_CHECK;

#endif
