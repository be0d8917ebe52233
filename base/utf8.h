/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of a UTF-8 decoder, for printing text from outside. Any thread.
 */
#ifndef HPS_BASE_UTF8_H
#define HPS_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decode the first character of text[size]. Returns its length in bytes (1 to 4) and sets
 * *out_point. 0: the text is empty, or does not begin with well-formed UTF-8 (overlong, a
 * surrogate, above U+10FFFF, truncated). */
static inline size_t hps_utf8_decode(const char *text, size_t size, uint32_t *out_point)
{
    static const uint32_t point_min[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (size == 0) {
        return 0;
    }
    uint32_t lead = (uint8_t)text[0];
    if (lead < 0x80) {
        *out_point = lead;
        return 1;
    }
    size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || length > size) {
        return 0;
    }
    uint32_t point = lead & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        uint32_t byte = (uint8_t)text[i];
        if ((byte & 0xc0) != 0x80) {
            return 0;
        }
        point = point << 6 | (byte & 0x3f);
    }
    if (point < point_min[length] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
        return 0;
    }
    *out_point = point;
    return length;
}

#endif
