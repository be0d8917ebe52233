/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C (Castagnoli, RFC 3720), the checksum of model files in manifest.json. Any thread.
 */
#ifndef HPS_BASE_ROWS_CRC32C_H
#define HPS_BASE_ROWS_CRC32C_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Add data[size] to a CRC. `crc` is the result of the previous call, or 0 for the first call. */
uint32_t hps_crc32c(uint32_t crc, const void *data, size_t size);

/* CRC and size of a whole file, read in pieces of 1 MiB. `cancel` may be NULL.
 *
 * error   NOT_FOUND, PERMISSION, IO, NO_MEMORY; CANCELLED once *cancel is true
 */
hps_status hps_crc32c_file(const char *path, const atomic_bool *cancel, uint32_t *out_crc,
                           uint64_t *out_bytes, struct hps_error *err) HPS_MUST_CHECK;

#endif
