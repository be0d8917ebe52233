/* SPDX-License-Identifier: Apache-2.0
 *
 * Safe display of text from outside, and lists of Kafka brokers. Any thread.
 */
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/assert.h"
#include "base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

bool hps_text_point_is_plain(uint32_t point)
{
    static const struct {
        uint32_t first, last;
    } others[] = {
        {0x0000, 0x001f},   /* C0: control characters of terminals */
        {0x007f, 0x009f},   /* DEL; C1: control characters as one character */
        {0x00ad, 0x00ad},   /* soft hyphen */
        {0x061c, 0x061c},   /* Arabic letter mark */
        {0x180e, 0x180e},   /* Mongolian vowel separator */
        {0x200b, 0x200f},   /* zero width; direction marks */
        {0x2028, 0x202e},   /* line separators; embeddings and overrides of direction */
        {0x2060, 0x206f},   /* invisible operators; direction isolates */
        {0xfeff, 0xfeff},   /* byte order mark */
        {0xfff9, 0xfffb},   /* annotations */
        {0xe0000, 0xe007f}, /* tags */
    };
    if (point >= 0x20 && point < 0x7f) {
        return true;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (point >= others[i].first && point <= others[i].last) {
            return false;
        }
    }
    return true;
}

bool hps_text_is_plain(const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        uint32_t point;
        size_t length = hps_utf8_decode(text + at, size - at, &point);
        if (length == 0 || !hps_text_point_is_plain(point)) {
            return false;
        }
        at += length;
    }
    return true;
}

size_t hps_text_escape(uint32_t point, char out_escape[HPS_TEXT_ESCAPE_BYTES])
{
    HPS_ASSERT(point <= 0x10ffff);
    int length = point < 0x10000
                     ? snprintf(out_escape, HPS_TEXT_ESCAPE_BYTES, "\\u%04x", (unsigned)point)
                     : snprintf(out_escape, HPS_TEXT_ESCAPE_BYTES, "\\u%04x\\u%04x",
                                0xd800u + (unsigned)((point - 0x10000) >> 10),
                                0xdc00u + (unsigned)((point - 0x10000) & 0x3ff));
    return (size_t)length;
}

size_t hps_text_plain(const char *text, size_t size, char *out_text, size_t capacity)
{
    size_t used = 0;
    HPS_ASSERT(capacity > 0);
    for (size_t at = 0; at < size;) {
        char escape[HPS_TEXT_ESCAPE_BYTES];
        uint32_t point;
        size_t length = hps_utf8_decode(text + at, size - at, &point);
        const char *piece = text + at;
        size_t piece_size = length;
        if (length == 0) {
            piece = REPLACEMENT;
            piece_size = strlen(REPLACEMENT);
        } else if (!hps_text_point_is_plain(point)) {
            piece = escape;
            piece_size = hps_text_escape(point, escape);
        }
        if (piece_size >= capacity - used) {
            break;
        }
        memcpy(out_text + used, piece, piece_size);
        used += piece_size;
        at += length > 0 ? length : 1;
    }
    out_text[used] = '\0';
    return used;
}

const char *hps_text_f64(double value, char out_text[HPS_TEXT_F64_BYTES])
{
    if (isfinite(value)) {
        (void)snprintf(out_text, HPS_TEXT_F64_BYTES, "%.15g", value);
        if (strtod(out_text, NULL) != value) {
            (void)snprintf(out_text, HPS_TEXT_F64_BYTES, "%.17g", value);
        }
    } else {
        (void)snprintf(out_text, HPS_TEXT_F64_BYTES, "%s",
                       isnan(value) ? "NaN"
                       : value > 0  ? "+Inf"
                                    : "-Inf");
    }
    return out_text;
}

/* ---- addresses ------------------------------------------------------------------------------- */

enum { PORT_DIGITS_MAX = 5 };
#define HOST_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
#define V6_CHARS   "0123456789abcdefABCDEF:."

/* Skips PROTOCOL://, if present. */
static const char *skip_protocol(const char *text)
{
    static const char *const protocols[] = {"plaintext://", "ssl://", "sasl_plaintext://",
                                            "sasl_ssl://"};

    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        size_t n = strlen(protocols[i]);
        if (strncasecmp(text, protocols[i], n) == 0) {
            return text + n;
        }
    }
    return text;
}

static bool is_broker(const char *text, size_t size)
{
    const char *end = text + size;
    const char *host = skip_protocol(text);
    bool v6 = host[0] == '[';
    size_t n_host = strspn(host + v6, v6 ? V6_CHARS : HOST_CHARS);
    const char *at = host + v6 + n_host;

    if (n_host == 0 || (v6 && *at++ != ']') || at > end) {
        return false;
    }
    if (at == end) {
        return true;
    }
    size_t n_digits = strspn(at + 1, "0123456789");
    unsigned long port = strtoul(at + 1, NULL, 10);
    return *at == ':' && at + 1 + n_digits == end && n_digits > 0 && n_digits <= PORT_DIGITS_MAX &&
           port > 0 && port <= UINT16_MAX;
}

hps_status hps_text_brokers_check(const char *list, struct hps_error *err)
{
    static const char *const between = ",; \t";
    size_t n_brokers = 0;

    for (const char *at = list + strspn(list, between); *at != '\0'; n_brokers++) {
        size_t n = strcspn(at, between);
        if (memchr(at, '@', n) != NULL) { /* the text before it may be a password */
            return hps_error_set(
                err, HPS_INVALID,
                "got '@' in an address (not shown, it may contain a password), expected HOST:PORT");
        }
        if (!is_broker(at, n)) {
            return hps_error_set(err, HPS_INVALID,
                                 "got \"%.*s\", expected HOST:PORT, [IPv6]:PORT or "
                                 "PROTOCOL://HOST:PORT of Kafka",
                                 n < 200 ? (int)n : 200, at);
        }
        at += n;
        at += strspn(at, between);
    }
    return n_brokers > 0 ? HPS_OK : hps_error_set(err, HPS_INVALID, "got none, expected HOST:PORT");
}
