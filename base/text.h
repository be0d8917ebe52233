/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that compare, display and check text from outside. Such text may contain any bytes, NUL
 * included. Any thread.
 */
#ifndef HPS_BASE_TEXT_H
#define HPS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* Whether the bytes are exactly the characters of `text`. */
static inline bool hps_text_is(const char *text, const void *bytes, size_t size)
{
    return strlen(text) == size && (size == 0 || memcmp(text, bytes, size) == 0);
}

/* The value of a hexadecimal digit, or -1 for other characters. */
static inline int hps_text_hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* ---- safe display on terminals and in logs --------------------------------------------------- */

/* Whether a code point is plain, that is, safe to display. These are not plain: control characters,
 * which terminals obey (a line break also begins a new log line); characters that change the
 * direction or the lines of text; and invisible characters, which make two different names look the
 * same. */
bool hps_text_point_is_plain(uint32_t point);
/* Whether the text is well-formed UTF-8 and has only plain characters. */
bool hps_text_is_plain(const char *text, size_t size);

enum { HPS_TEXT_ESCAPE_BYTES = 13, HPS_TEXT_GROWTH = 6 };
/* Write a JSON escape of a code point, such as \u001b, or a surrogate pair beyond U+FFFF, with a
 * NUL. Returns the length. */
size_t hps_text_escape(uint32_t point, char out_escape[HPS_TEXT_ESCAPE_BYTES]);
/* Copy the text, with escapes (hps_text_escape) for characters that are not plain, and U+FFFD for
 * each byte that is not UTF-8. The copy ends with a NUL. If it does not fit, it is cut between
 * characters. A capacity of HPS_TEXT_GROWTH * size + 1 is always enough.
 *
 * shape   out_text[capacity], not `text` itself; capacity > 0
 * returns the length of the copy, without the NUL
 */
size_t hps_text_plain(const char *text, size_t size, char *out_text, size_t capacity);

enum { HPS_TEXT_F64_BYTES = 32 };
/* Write a double with 15 digits, or with 17 if 15 digits would read back as another value. Special
 * values are NaN, +Inf and -Inf. Returns out_text. */
const char *hps_text_f64(double value, char out_text[HPS_TEXT_F64_BYTES]);

/* ---- addresses ------------------------------------------------------------------------------- */

/* Whether `list` is a list of Kafka brokers as librdkafka expects it: HOST, HOST:PORT or
 * PROTOCOL://HOST:PORT, separated by commas, semicolons or blanks. librdkafka itself accepts any
 * text and then waits for the broker. Does not resolve names.
 *
 * error   INVALID: the list is empty, or an entry is wrong; `err` names the entry unless it may
 *         contain a password
 */
hps_status hps_text_brokers_check(const char *list, struct hps_error *err) HPS_MUST_CHECK;

#endif
