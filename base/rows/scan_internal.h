/* SPDX-License-Identifier: Apache-2.0
 *
 * A cursor in the text of a file's header. Any thread.
 */
#ifndef HPS_BASE_ROWS_SCAN_INTERNAL_H
#define HPS_BASE_ROWS_SCAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct scan {
    const char *format; /* for messages */
    const uint8_t *text;
    size_t at;
    size_t end;
    size_t offset; /* of the text in the file, for messages */
    struct hps_error *err;
};

static inline hps_status expected(const struct scan *scan, const char *what)
{
    return hps_error_set(scan->err, HPS_INVALID, "%s header, byte %zu: expected %s", scan->format,
                         scan->offset + scan->at, what);
}

static inline void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && (scan->text[scan->at] == ' ' || scan->text[scan->at] == '\n' ||
                                    scan->text[scan->at] == '\t' || scan->text[scan->at] == '\r')) {
        scan->at++;
    }
}

/* Skip spaces and then `byte`. */
static inline bool take(struct scan *scan, char byte)
{
    skip_space(scan);
    if (scan->at < scan->end && scan->text[scan->at] == (uint8_t)byte) {
        scan->at++;
        return true;
    }
    return false;
}

static inline hps_status take_number(struct scan *scan, uint64_t *out_number)
{
    uint64_t number = 0;

    skip_space(scan);
    size_t begin = scan->at;
    while (scan->at < scan->end && scan->text[scan->at] >= '0' && scan->text[scan->at] <= '9') {
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(scan->text[scan->at] - '0'), &number)) {
            return expected(scan, "a number below 2^64");
        }
        scan->at++;
    }
    if (scan->at == begin) {
        return expected(scan, "a number");
    }
    *out_number = number;
    return HPS_OK;
}

#endif
