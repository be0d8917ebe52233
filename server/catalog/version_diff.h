/* SPDX-License-Identifier: Apache-2.0
 *
 * How a version differs from the one that it will replace: added and removed tables, widths, types,
 * row counts at the load. Any thread; the caller keeps the versions alive.
 */
#ifndef HPS_SERVER_CATALOG_VERSION_DIFF_H
#define HPS_SERVER_CATALOG_VERSION_DIFF_H

#include "cache/version/version.h"

/* A table that differs. dim 0: that version has no such table. */
struct hps_table_diff {
    char *table; /* owned */
    uint32_t dim_before, dim_after;
    enum hps_dtype dtype_before, dtype_after;
    uint64_t n_rows_before, n_rows_after;
};

struct hps_version_diff {
    struct hps_table_diff *tables; /* [n_tables] in the order of `before`, then new tables */
    uint32_t n_tables;
};

/* out_diff must be zeroed. The caller frees it, also on NO_MEMORY. */
hps_status hps_version_diff(const struct hps_version *before, const struct hps_version *after,
                            struct hps_version_diff *out_diff) HPS_MUST_CHECK;
void hps_version_diff_free(struct hps_version_diff *diff); /* may be zeroed; is empty afterwards */
/* Whether `after` may replace `before` without `force`. PRECONDITION names the reason: a removed or
 * new table, another width, or a table with fewer than 1 - rows_loss_max of its rows. Another type
 * is accepted: values are the same, except for the conversion error that the load reports. */
hps_status hps_version_diff_check(const struct hps_version_diff *diff, double rows_loss_max,
                                  struct hps_error *err) HPS_MUST_CHECK;

#endif
