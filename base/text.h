/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes from outside, which may hold anything, NULs too: whether they are a given text, and how
 * they are shown to people. Any thread.
 */
#ifndef HPS_BASE_TEXT_H
#define HPS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* Are the bytes just the characters of `text`? */
static inline bool hps_text_is(const char *text, const void *bytes, size_t size)
{
    return strlen(text) == size && (size == 0 || memcmp(text, bytes, size) == 0);
}

/* ---- for terminals and lines of a log -------------------------------------------------------- */

/* Is a code point one that only shows itself? Not: control characters (terminals obey them, and a
 * line break begins a line of the log), those that change the direction or the lines of the text
 * around them, and invisible ones, with which two different names look the same. */
bool hps_text_point_is_plain(uint32_t point);
/* Is all of the text such characters, in well-formed UTF-8? */
bool hps_text_is_plain(const char *text, size_t size);

enum { HPS_TEXT_ESCAPE_BYTES = 13, HPS_TEXT_GROWTH = 6 };
/* \u001b, or a pair of those beyond U+FFFF, as JSON has it, with a NUL. Returns its length. */
size_t hps_text_escape(uint32_t point, char out_escape[HPS_TEXT_ESCAPE_BYTES]);
/* The text with such escapes for what is not plain, and U+FFFD for each byte that is not UTF-8; cut
 * between characters, with a NUL. In HPS_TEXT_GROWTH times its size, and 1, nothing is cut.
 *
 * shape   out_text[capacity], not `text` itself; capacity > 0
 * returns its length
 */
size_t hps_text_plain(const char *text, size_t size, char *out_text, size_t capacity);

enum { HPS_TEXT_F64_BYTES = 32 };
/* A double in 15 digits, or 17 if it needs them to read back the same; NaN, +Inf, -Inf. Returns
 * out_text. */
const char *hps_text_f64(double value, char out_text[HPS_TEXT_F64_BYTES]);

/* ---- addresses ------------------------------------------------------------------------------- */

/* Is `list` a list of Kafka brokers, as librdkafka takes them: HOST, HOST:PORT or
 * PROTOCOL://HOST:PORT, separated by commas, semicolons or blanks? librdkafka itself takes any text
 * and waits for the broker. Looks nothing up.
 *
 * error   INVALID: the list is empty, or names its first wrong entry, unless that may have a
 *         password
 */
hps_status hps_text_brokers_check(const char *list, struct hps_error *err) HPS_MUST_CHECK;

#endif
