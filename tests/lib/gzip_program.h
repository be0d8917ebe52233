/* SPDX-License-Identifier: Apache-2.0
 *
 * Compression by the gzip program, so that what we inflate is not what we deflated. Failures fail
 * the test. One thread.
 */
#ifndef HPS_TESTS_LIB_GZIP_PROGRAM_H
#define HPS_TESTS_LIB_GZIP_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

/* What gzip -9 makes of `data`; returns its size, which is below `capacity`. */
size_t hps_gzip_program(const void *data, size_t size, uint8_t *out, size_t capacity);

#endif
