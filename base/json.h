/* SPDX-License-Identifier: Apache-2.0
 *
 * Values as JSON has them, put into a buffer (hps_buf_put). Any thread.
 */
#ifndef HPS_BASE_JSON_H
#define HPS_BASE_JSON_H

#include "base/buf.h"

/* Append `text` as a JSON string, quotes included; what is not plain (base/text.h) is escaped,
 * bytes that are not UTF-8 become U+FFFD. */
void hps_json_text(struct hps_buf *buf, const char *text, size_t size);
/* Write a finite float32 as a number of JSON, with a NUL. A reader gets the same float32 back, and
 * zero with its sign: -0.0, because -0 is an integer to some readers. Returns its length. */
enum { HPS_JSON_FLOAT_BYTES = 16 }; /* -1.17549435e-38 */
size_t hps_json_float_text(float value, char out_text[HPS_JSON_FLOAT_BYTES]);
/* Append a float32; NaN and infinities are null. */
void hps_json_float(struct hps_buf *buf, float value);

#endif
