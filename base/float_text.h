/* SPDX-License-Identifier: Apache-2.0
 *
 * A float32 as the shortest decimal text that reads back as the same float32. Any thread.
 */
#ifndef HPS_BASE_FLOAT_TEXT_H
#define HPS_BASE_FLOAT_TEXT_H

#include <stddef.h>

enum { HPS_FLOAT_TEXT_BYTES = 15 }; /* -1.17549435e-38 */

/* Of all texts with as few digits the nearest one: 0.1, -12.5, 3e-45, 16777216. What is zero keeps
 * its sign: -0.0. As JSON has numbers, and without a NUL. `value` is finite. Returns its length. */
size_t hps_float_text(float value, char out_text[HPS_FLOAT_TEXT_BYTES]);

#endif
