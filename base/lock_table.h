/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of locks (base/lock_table.def) as data, for the assertions of debug builds and for
 * docs/threads.md. Any thread.
 */
#ifndef HPS_BASE_LOCK_TABLE_H
#define HPS_BASE_LOCK_TABLE_H

#include "base/buf.h"
#include "base/lock.h"

/* Whether a thread may wait while it holds the lock. */
enum hps_lock_may { HPS_LOCK_MAY_NOT_WAIT, HPS_LOCK_MAY_WAIT };

/* One line of lock_table.def, which explains the fields. */
struct hps_lock_row {
    unsigned rank;
    enum hps_lock_may may;
    const char *label;
    const char *protects;
    const char *takers;
};

extern const struct hps_lock_row hps_lock_rows[HPS_LOCK_CLASSES]; /* indexed by class */

/* Append the table of docs/threads.md. */
void hps_lock_doc(struct hps_buf *buf);

#endif
