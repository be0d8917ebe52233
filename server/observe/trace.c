/* SPDX-License-Identifier: Apache-2.0
 *
 *     00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
 *     version, trace, parent, flags; later versions may append fields after another '-'
 *
 * Any thread.
 */
#include "server/observe/trace.h"

#include <string.h>

#include "base/assert.h"

enum { VERSION_AT = 0, TRACE_AT = 3, PARENT_AT = 36, FLAGS_AT = 53, HEADER_CHARS = 55 };

static bool is_hex(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && ((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f'))) {
        i++;
    }
    return i == n;
}

static bool is_zero(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && text[i] == '0') {
        i++;
    }
    return i == n;
}

static bool is_usable(const char *header, size_t size)
{
    if (header == NULL || size < HEADER_CHARS || !is_hex(header + VERSION_AT, 2) ||
        memcmp(header + VERSION_AT, "ff", 2) == 0 || header[TRACE_AT - 1] != '-' ||
        header[PARENT_AT - 1] != '-' || header[FLAGS_AT - 1] != '-') {
        return false;
    }
    bool first = memcmp(header + VERSION_AT, "00", 2) == 0;
    bool ends = size == HEADER_CHARS || (!first && header[HEADER_CHARS] == '-');
    return ends && is_hex(header + TRACE_AT, HPS_TRACE_ID_CHARS) &&
           !is_zero(header + TRACE_AT, HPS_TRACE_ID_CHARS) && is_hex(header + PARENT_AT, 16) &&
           !is_zero(header + PARENT_AT, 16) && is_hex(header + FLAGS_AT, 2);
}

bool hps_trace_id(const char *header, size_t size, char out_id[HPS_TRACE_ID_CHARS + 1])
{
    HPS_ASSERT(out_id != NULL);
    bool usable = is_usable(header, size);
    size_t n = usable ? HPS_TRACE_ID_CHARS : 0;
    if (usable) {
        memcpy(out_id, header + TRACE_AT, n);
    }
    out_id[n] = '\0';
    return usable;
}
