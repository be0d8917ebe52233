/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of two versions, matched by name. Any thread.
 */
#include "server/catalog/version_diff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"

void hps_version_diff_free(struct hps_version_diff *diff)
{
    for (uint32_t i = 0; i < diff->n_tables; i++) {
        hps_free(diff->tables[i].table);
    }
    hps_free(diff->tables);
    memset(diff, 0, sizeof(*diff));
}

static int by_name(const void *a, const void *b)
{
    const struct hps_table *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

/* The tables of a version by name; the caller frees the array. */
static const struct hps_table **sorted(const struct hps_version *version)
{
    const struct hps_table **tables = hps_calloc(version->n_tables, sizeof(struct hps_table *));
    for (uint32_t i = 0; tables != NULL && i < version->n_tables; i++) {
        tables[i] = &version->tables[i];
    }
    if (tables != NULL) {
        qsort(tables, version->n_tables, sizeof(struct hps_table *), by_name);
    }
    return tables;
}

static const struct hps_table *find(const struct hps_table **tables, uint32_t n,
                                    const struct hps_table *like)
{
    const struct hps_table **at = bsearch(&like, tables, n, sizeof(struct hps_table *), by_name);
    return at == NULL ? NULL : *at;
}

/* NULL, for one of both: the version has no such table. */
static hps_status compare(struct hps_version_diff *diff, const struct hps_table *before,
                          const struct hps_table *after)
{
    const struct hps_table *named = before != NULL ? before : after;
    struct hps_table_diff found = {
        .dim_before = before != NULL ? before->dim : 0,
        .dim_after = after != NULL ? after->dim : 0,
        .dtype_before = named->dtype,
        .dtype_after = after != NULL ? after->dtype : named->dtype,
        .n_rows_before = before != NULL ? before->n_rows : 0,
        .n_rows_after = after != NULL ? after->n_rows : 0,
    };
    if (found.dim_before == found.dim_after && found.dtype_before == found.dtype_after &&
        found.n_rows_before == found.n_rows_after) {
        return HPS_OK;
    }
    found.table = hps_strdup(named->name);
    if (found.table == NULL) {
        return HPS_NO_MEMORY;
    }
    diff->tables[diff->n_tables++] = found;
    return HPS_OK;
}

hps_status hps_version_diff(const struct hps_version *before, const struct hps_version *after,
                            struct hps_version_diff *out_diff)
{
    const struct hps_table **old = sorted(before), **new = sorted(after);
    hps_status status = HPS_NO_MEMORY;
    out_diff->tables =
        hps_calloc((size_t)before->n_tables + after->n_tables, sizeof(*out_diff->tables));
    if (old == NULL || new == NULL || out_diff->tables == NULL) {
        goto out;
    }
    status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < before->n_tables; i++) {
        const struct hps_table *table = &before->tables[i];
        status = compare(out_diff, table, find(new, after->n_tables, table));
    }
    for (uint32_t i = 0; status == HPS_OK && i < after->n_tables; i++) {
        const struct hps_table *table = &after->tables[i];
        if (find(old, before->n_tables, table) == NULL) {
            status = compare(out_diff, NULL, table);
        }
    }
out:
    if (out_diff->n_tables == 0) {
        hps_version_diff_free(out_diff);
    }
    hps_free(old);
    hps_free(new);
    return status;
}

/* Whether the difference forbids a replacement; `out` has the reason. */
static bool speaks_against(const struct hps_table_diff *table, double rows_loss_max, char *out,
                           size_t size)
{
    double kept_min = (1.0 - rows_loss_max) * (double)table->n_rows_before;
    if (table->dim_after == 0) {
        snprintf(out, size, "table \"%.60s\" is gone", table->table);
    } else if (table->dim_before == 0) {
        snprintf(out, size, "table \"%.60s\" is new", table->table);
    } else if (table->dim_before != table->dim_after) {
        snprintf(out, size, "table \"%.60s\" has width %" PRIu32 ", was %" PRIu32, table->table,
                 table->dim_after, table->dim_before);
    } else if ((double)table->n_rows_after < kept_min) {
        snprintf(out, size,
                 "table \"%.60s\" has %" PRIu64 " rows, were %" PRIu64
                 " (server.activate_rows_loss_max is %g)",
                 table->table, table->n_rows_after, table->n_rows_before, rows_loss_max);
    } else {
        return false;
    }
    return true;
}

hps_status hps_version_diff_check(const struct hps_version_diff *diff, double rows_loss_max,
                                  struct hps_error *err)
{
    enum { NAMED_MAX = 2 };
    char text[512] = "", one[192];
    uint32_t n = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < diff->n_tables; i++) {
        if (!speaks_against(&diff->tables[i], rows_loss_max, one, sizeof(one))) {
            continue;
        }
        if (n++ < NAMED_MAX) {
            int printed = snprintf(text + at, sizeof(text) - at, "%s%s", at > 0 ? "; " : "", one);
            at += (size_t)printed;
        }
    }
    if (n == 0) {
        return HPS_OK;
    }
    if (n > NAMED_MAX) {
        snprintf(text + at, sizeof(text) - at, "; and %" PRIu32 " more tables", n - NAMED_MAX);
    }
    return hps_error_set(err, HPS_PRECONDITION, "%s", text);
}
