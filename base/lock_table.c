/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of locks as data, and as docs/threads.md shows it. Any thread.
 */
#include "base/lock_table.h"

#include <string.h>

#include "base/assert.h"

static const char BEGIN[] =
    "<!-- Made by gen-lock-doc from base/lock_table.def. Do not edit. -->\n";
static const char END[] = "<!-- The end of what gen-lock-doc made. -->\n";

const struct hps_lock_row hps_lock_rows[HPS_LOCK_CLASSES] = {
    [HPS_LOCK_NONE] = {.label = "a lock that is not initialised"},
#define LOCK(name, rank, may, label, protects, takers) \
    [HPS_LOCK_##name] = {rank, HPS_LOCK_MAY_##may, label, protects, takers},
#include "base/lock_table.def"
#undef LOCK
};

static void print_rows(struct hps_buf *buf)
{
    hps_buf_put(buf, "| rank | lock | protects | taken by |\n|---|---|---|---|\n");
    for (unsigned i = HPS_LOCK_NONE + 1; i < HPS_LOCK_CLASSES; i++) {
        const struct hps_lock_row *row = &hps_lock_rows[i];
        hps_buf_putf(buf, "| %u | %s%s | %s | %s |\n", row->rank, row->label,
                     row->may == HPS_LOCK_MAY_WAIT ? " *(may wait)*" : "", row->protects,
                     row->takers);
    }
}

hps_status hps_lock_doc(const char *page, struct hps_buf *buf)
{
    HPS_ASSERT(page != NULL && buf != NULL);
    const char *begin = strstr(page, BEGIN);
    const char *end = begin == NULL ? NULL : strstr(begin, END);

    if (end == NULL) {
        return HPS_INVALID;
    }
    hps_buf_put_bytes(buf, page, (size_t)(begin - page) + strlen(BEGIN));
    print_rows(buf);
    hps_buf_put(buf, end);
    return buf->status;
}
