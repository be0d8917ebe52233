/* SPDX-License-Identifier: Apache-2.0
 *
 * Values as JSON has them. Any thread.
 */
#ifndef HPS_BASE_JSON_H
#define HPS_BASE_JSON_H

#include "base/buf.h"

/* Append `text` as a JSON string, quotes included; what is not plain (base/text.h) is escaped,
 * bytes that are not UTF-8 become U+FFFD. */
hps_status hps_json_text(struct hps_buf *buf, const char *text, size_t size) HPS_MUST_CHECK;
/* Append a float32 so that it reads back the same; NaN and infinities are null. */
hps_status hps_json_float(struct hps_buf *buf, float value) HPS_MUST_CHECK;

#endif
