/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON values, appended to a buffer (hps_buf_put). Any thread.
 */
#ifndef HPS_BASE_JSON_H
#define HPS_BASE_JSON_H

#include "base/buf.h"

/* Append `text` as a JSON string with quotes. Characters that are not plain (base/text.h) are
 * escaped; bytes that are not UTF-8 become U+FFFD. */
void hps_json_text(struct hps_buf *buf, const char *text, size_t size);
/* Write a finite float32 as a JSON number with a NUL. It reads back as the same float32. Negative
 * zero is "-0.0", because some parsers read "-0" as the integer 0. Returns the length. */
enum { HPS_JSON_FLOAT_BYTES = 16 }; /* for -1.17549435e-38 and its NUL */
size_t hps_json_float_text(float value, char out_text[HPS_JSON_FLOAT_BYTES]);
/* Append a float32; NaN and infinities become null. */
void hps_json_float(struct hps_buf *buf, float value);

#endif
