/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of locks as data, and in the format of docs/threads.md. Any thread.
 */
#include "base/lock_table.h"

const struct hps_lock_row hps_lock_rows[HPS_LOCK_CLASSES] = {
    [HPS_LOCK_NONE] = {.label = "a lock that is not initialised"},
#define LOCK(name, rank, may, label, protects, takers) \
    [HPS_LOCK_##name] = {rank, HPS_LOCK_MAY_##may, label, protects, takers},
#include "base/lock_table.def"
#undef LOCK
};

void hps_lock_doc(struct hps_buf *buf)
{
    hps_buf_put(buf, "| rank | lock | protects | taken by |\n|---|---|---|---|\n");
    for (unsigned i = HPS_LOCK_NONE + 1; i < HPS_LOCK_CLASSES; i++) {
        const struct hps_lock_row *row = &hps_lock_rows[i];
        hps_buf_putf(buf, "| %u | %s%s | %s | %s |\n", row->rank, row->label,
                     row->may == HPS_LOCK_MAY_WAIT ? " *(may wait)*" : "", row->protects,
                     row->takers);
    }
}
