/* SPDX-License-Identifier: Apache-2.0
 *
 * How a version differs from the one whose place it is to take: tables that come and go, widths,
 * types, rows as they were loaded. Any thread; the versions stay for the call.
 */
#ifndef HPS_SERVER_CATALOG_VERSION_DIFF_H
#define HPS_SERVER_CATALOG_VERSION_DIFF_H

#include "cache/version/version.h"

/* One table that is not the same in both. dim 0: the version there has no such table. */
struct hps_table_diff {
    char *table; /* owned */
    uint32_t dim_before, dim_after;
    enum hps_dtype dtype_before, dtype_after;
    uint64_t n_rows_before, n_rows_after;
};

struct hps_version_diff {
    struct hps_table_diff *tables; /* [n_tables], in the order of `before`, new ones last */
    uint32_t n_tables;
};

/* out_diff: an empty one (zeroed); to be freed, on NO_MEMORY too. */
hps_status hps_version_diff(const struct hps_version *before, const struct hps_version *after,
                            struct hps_version_diff *out_diff) HPS_MUST_CHECK;
void hps_version_diff_free(struct hps_version_diff *diff); /* a zeroed one is legal; empty then */
/* May `after` take over unasked? PRECONDITION names what speaks against it: a table that is gone or
 * new, another width, or a table with fewer than 1 - rows_loss_max of its rows. Another type does
 * not: answers have the same values, but for the error that the load has told. */
hps_status hps_version_diff_check(const struct hps_version_diff *diff, double rows_loss_max,
                                  struct hps_error *err) HPS_MUST_CHECK;

#endif
