/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON strings and numbers. See base/json.h.
 */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "base/utf8.h"

void hps_json_text(struct hps_buf *buf, const char *text, size_t size)
{
    hps_buf_put(buf, "\"");
    while (size > 0 && buf->status == HPS_OK) {
        uint32_t point;
        size_t length = hps_utf8_decode(text, size, &point);
        if (length == 0) {
            hps_buf_put(buf, "\xEF\xBF\xBD");
            length = 1;
        } else if (!hps_text_point_is_plain(point)) {
            char escape[HPS_TEXT_ESCAPE_BYTES];
            hps_buf_put_bytes(buf, escape, hps_text_escape(point, escape));
        } else if (point == '"' || point == '\\') {
            hps_buf_putf(buf, "\\%c", (char)point);
        } else {
            hps_buf_put_bytes(buf, text, length);
        }
        text += length;
        size -= length;
    }
    hps_buf_put(buf, "\"");
}

size_t hps_json_float_text(float value, char out_text[HPS_JSON_FLOAT_BYTES])
{
    const char *zero = value == 0 && signbit(value) ? ".0" : "";

    HPS_ASSERT(isfinite(value));
    return (size_t)snprintf(out_text, HPS_JSON_FLOAT_BYTES, "%.9g%s", (double)value, zero);
}

void hps_json_float(struct hps_buf *buf, float value)
{
    char text[HPS_JSON_FLOAT_BYTES];

    if (isfinite(value)) {
        hps_buf_put_bytes(buf, text, hps_json_float_text(value, text));
    } else {
        hps_buf_put(buf, "null");
    }
}
