/* SPDX-License-Identifier: Apache-2.0
 *
 * Which values of a row are NaN or Inf: rows from files and from updates are refused for one. Any
 * thread.
 */
#ifndef HPS_BASE_ROWS_FINITE_H
#define HPS_BASE_ROWS_FINITE_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/types.h"

/* Index of the first of n values that is NaN or Inf, or n. `values`: any alignment. */
size_t hps_first_not_finite(enum hps_dtype dtype, const void *values, size_t n);

#endif
