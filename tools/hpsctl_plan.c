/* SPDX-License-Identifier: Apache-2.0
 *
 * The needs and the changes of a version, as `load --dry-run`, `load` and `activate` print them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/hpsctl.h"

#include "base/assert.h"

void hpsctl_table_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info)
{
    hpsctl_table_cell(table, "%s", info->model);
    hpsctl_table_cell(table, "%" PRId64, info->version);
    hpsctl_table_cell(table, "%" PRIu32, info->place);
    hpsctl_table_cell(table, "%s", info->table);
    hpsctl_table_cell(table, "%" PRIu32, info->dim);
    hpsctl_table_cell(table, "%s", info->data_type);
    hpsctl_rows_cell(table, info->row_count, info->row_count_estimated);
}

static void need_cells(struct hpsctl_table *table, const char *what, uint64_t needed,
                       uint64_t available)
{
    char text[HPSCTL_TEXT_BYTES];

    hpsctl_table_cell(table, "%s", what);
    hpsctl_table_cell(table, "%s", hpsctl_bytes_text(needed, text));
    hpsctl_table_cell(table, "%s", hpsctl_bytes_text(available, text));
    hpsctl_table_cell(table, "%s", needed <= available ? "yes" : "NO");
}

/* A resource with an unknown available amount: another process owns it. Adds no row if `needed` is
 * 0. */
static void only_needed_cells(struct hpsctl_table *table, const char *resource, uint64_t needed)
{
    char text[HPSCTL_TEXT_BYTES];
    if (needed > 0) {
        hpsctl_table_cell(table, "%s", resource);
        hpsctl_table_cell(table, "%s", hpsctl_bytes_text(needed, text));
        hpsctl_table_cell(table, "-");
        hpsctl_table_cell(table, "-");
    }
}

static void print_needs(const Hps__V1__LoadPlan *plan)
{
    static const char *const tables[] = {"MODEL", ">VERSION", ">PLACE", "TABLE",
                                         ">DIM",  "TYPE",     ">ROWS",  NULL};
    static const char *const columns[] = {"RESOURCE", ">NEEDED", ">AVAILABLE", "FITS", NULL};
    struct hpsctl_table table;

    hpsctl_table_init(&table, tables);
    for (size_t i = 0; i < plan->n_tables; i++) {
        hpsctl_table_cells(&table, plan->tables[i]);
    }
    (void)hpsctl_table_print(&table);
    printf("\n");
    hpsctl_table_init(&table, columns);
    need_cells(&table, "disk", plan->disk_bytes_needed, plan->disk_bytes_available);
    need_cells(&table, "host memory", plan->host_bytes_needed, plan->host_bytes_available);
    only_needed_cells(&table, "redis", plan->redis_bytes_needed);
    only_needed_cells(&table, "device memory", plan->device_bytes_needed);
    (void)hpsctl_table_print(&table);
    if (plan->dropped_row_count > 0) {
        printf("\n"
               "warning: %" PRIu64 " rows exceed volatile_db.overflow_margin and would be dropped; "
               "no other store keeps them\n",
               plan->dropped_row_count);
    }
}

/* "before -> after", or the one value if the table is new, removed or unchanged. */
static void change_cell(struct hpsctl_table *table, const Hps__V1__TableDiff *diff, uint64_t before,
                        uint64_t after)
{
    if (diff->dim_before == 0) {
        hpsctl_table_cell(table, "%" PRIu64, after);
    } else if (diff->dim_after == 0 || before == after) {
        hpsctl_table_cell(table, "%" PRIu64, before);
    } else {
        hpsctl_table_cell(table, "%" PRIu64 " -> %" PRIu64, before, after);
    }
}

static void diff_cells(struct hpsctl_table *table, const Hps__V1__TableDiff *diff)
{
    HPS_ASSERT(diff->dim_before != 0 || diff->dim_after != 0);
    bool same_type = strcmp(diff->data_type_before, diff->data_type_after) == 0;

    hpsctl_table_cell(table, "%s", diff->table);
    hpsctl_table_cell(table, "%s",
                      diff->dim_before == 0  ? "new"
                      : diff->dim_after == 0 ? "gone"
                                             : "changed");
    change_cell(table, diff, diff->dim_before, diff->dim_after);
    hpsctl_table_cell(table, "%s%s%s", diff->data_type_before, same_type ? "" : " -> ",
                      same_type ? "" : diff->data_type_after);
    change_cell(table, diff, diff->row_count_before, diff->row_count_after);
    if (diff->row_count_before > 0 && diff->dim_after > 0) {
        double before = (double)diff->row_count_before;
        hpsctl_table_cell(table, "%+.1f %%",
                          100.0 * ((double)diff->row_count_after - before) / before);
    } else {
        hpsctl_table_cell(table, "%s", "");
    }
}

void hpsctl_print_diffs(int64_t version, int64_t before, Hps__V1__TableDiff **diffs, size_t n)
{
    static const char *const columns[] = {"TABLE", "STATE",   ">DIM", ">TYPE",
                                          ">ROWS", ">CHANGE", NULL};
    struct hpsctl_table table;

    if (n == 0) {
        return;
    }
    printf("\n"
           "version %" PRId64 " compared with version %" PRId64
           " (rows as loaded; other tables are the same):\n",
           version, before);
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < n; i++) {
        diff_cells(&table, diffs[i]);
    }
    (void)hpsctl_table_print(&table);
}

void hpsctl_print_versions(FILE *to, const char *model, const char *what, const int64_t *versions,
                           size_t n)
{
    HPS_ASSERT(versions != NULL || n == 0);
    if (n == 0) {
        return;
    }
    (void)fprintf(to, "%s: %s: version", model, what);
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(to, "%s %" PRId64, i > 0 ? "," : "", versions[i]);
    }
    (void)fputc('\n', to);
}

void hpsctl_print_plan(const Hps__V1__LoadProgress *progress)
{
    HPS_ASSERT(progress->plan != NULL);
    const Hps__V1__LoadPlan *plan = progress->plan;

    print_needs(plan);
    hpsctl_print_diffs(progress->version, progress->active_version, plan->diffs, plan->n_diffs);
    if (plan->n_unload_versions > 0) {
        printf("\n");
    }
    hpsctl_print_versions(stdout, progress->model, "would be unloaded", plan->unload_versions,
                          plan->n_unload_versions);
}
