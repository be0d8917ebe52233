/* SPDX-License-Identifier: Apache-2.0
 *
 * How a version differs from the one that it will replace: added and removed tables, widths, row
 * types, and numbers of rows when the versions were loaded. Any thread. The versions must stay
 * allocated during hps_version_diff; the result does not refer to them.
 */
#ifndef HPS_SERVER_CATALOG_VERSION_DIFF_H
#define HPS_SERVER_CATALOG_VERSION_DIFF_H

#include "cache/version/version.h"

/* A table that differs. `before` is the version that is replaced, `after` the new version. */
struct hps_table_diff {
    char *table;                    /* its name, owned */
    uint32_t dim_before, dim_after; /* 0: that version has no such table */
    enum hps_dtype dtype_before, dtype_after;
    uint64_t n_rows_before, n_rows_after;
};

struct hps_version_diff {
    struct hps_table_diff *tables; /* [n_tables] in the order of `before`, then new tables */
    uint32_t n_tables;
};

/* Compare two versions; tables are matched by name. The caller passes *out_diff zeroed, and frees
 * it with hps_version_diff_free, also after an error.
 * error   NO_MEMORY */
hps_status hps_version_diff(const struct hps_version *before, const struct hps_version *after,
                            struct hps_version_diff *out_diff) HPS_MUST_CHECK;
/* Free the contents of *diff, and zero *diff. No effect if *diff is zeroed already. */
void hps_version_diff_free(struct hps_version_diff *diff);
/* OK if `after` may replace `before` without `force`. rows_loss_max: the largest share of rows, 0
 * to 1, that a table may lose. A change of the row type is accepted: it changes values only by the
 * conversion error, which the load reports.
 * error   PRECONDITION: a table was removed, is new, has another width, or lost too many rows; the
 *         text names the table */
hps_status hps_version_diff_check(const struct hps_version_diff *diff, double rows_loss_max,
                                  struct hps_error *err) HPS_MUST_CHECK;

#endif
