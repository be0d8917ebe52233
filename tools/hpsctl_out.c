/* SPDX-License-Identifier: Apache-2.0
 *
 * Output of hpsctl: aligned tables and readable quantities. One thread.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/text.h"
#include "tools/hpsctl.h"

enum { CELL_BYTES_MAX = 400, COLUMNS_MAX = 24, GAP = 2 };

/* Columns of the text on a terminal: the number of code points, approximately. */
static size_t text_width(const char *text)
{
    size_t width = 0;

    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

void hpsctl_table_init(struct hpsctl_table *table, const char *const *columns)
{
    *table = (struct hpsctl_table){.columns = columns};
    hps_buf_init(&table->text, HPS_CLIENT_REPLY_BYTES_MAX);
    while (columns[table->n_columns] != NULL) {
        HPS_ASSERT(table->n_columns < COLUMNS_MAX);
        table->n_columns++;
    }
}

void hpsctl_table_cell(struct hpsctl_table *table, const char *fmt, ...)
{
    HPS_ASSERT(table->n_columns > 0);
    char raw[CELL_BYTES_MAX], cell[CELL_BYTES_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(raw, sizeof(raw), fmt, args);
    va_end(args);
    (void)hps_text_plain(raw, strlen(raw), cell, sizeof(cell));
    const char *text = cell[0] == '\0' ? "-" : cell;
    if (hps_buf_append(&table->text, text, strlen(text) + 1) != HPS_OK) {
        table->broken = true;
    }
    table->n_cells++;
}

static void print_cell(const char *text, size_t width, bool number, bool last)
{
    HPS_ASSERT(text_width(text) <= width);
    size_t blanks = width - text_width(text);

    if (number) {
        printf("%*s%s", (int)blanks, "", text);
    } else {
        printf("%s%*s", text, last ? 0 : (int)blanks, "");
    }
    printf("%*s", last ? 0 : GAP, "");
}

void hpsctl_rows_cell(struct hpsctl_table *table, uint64_t n_rows, bool estimated)
{
    hpsctl_table_cell(table, "%s%" PRIu64, estimated ? "~" : "", n_rows);
}

int hpsctl_table_print(struct hpsctl_table *table)
{
    HPS_ASSERT(table->n_cells % table->n_columns == 0);
    size_t width[COLUMNS_MAX] = {0};
    const char *cell = (const char *)table->text.data;
    unsigned n_columns = table->n_columns;
    bool broken = table->broken;

    for (unsigned c = 0; c < n_columns; c++) {
        width[c] = text_width(table->columns[c] + (table->columns[c][0] == '>'));
    }
    for (unsigned i = 0; !broken && i < table->n_cells; i++) {
        size_t cell_width = text_width(cell);
        width[i % n_columns] =
            width[i % n_columns] < cell_width ? cell_width : width[i % n_columns];
        cell += strlen(cell) + 1;
    }
    for (unsigned c = 0; !broken && c < n_columns; c++) {
        bool number = table->columns[c][0] == '>';
        print_cell(table->columns[c] + number, width[c], number, c + 1 == n_columns);
    }
    printf("\n");
    cell = (const char *)table->text.data;
    for (unsigned i = 0; !broken && i < table->n_cells; i++) {
        unsigned c = i % n_columns;
        print_cell(cell, width[c], table->columns[c][0] == '>', c + 1 == n_columns);
        if (c + 1 == n_columns) {
            printf("\n");
        }
        cell += strlen(cell) + 1;
    }
    hps_buf_fini(&table->text);
    if (broken) {
        return hpsctl_no_memory();
    }
    return TOOL_OK;
}

const char *hpsctl_bytes_text(uint64_t bytes, char out[HPSCTL_TEXT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(out, HPSCTL_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

const char *hpsctl_duration_text(uint64_t duration_s, char out[HPSCTL_TEXT_BYTES])
{
    if (duration_s >= 86400) {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "%" PRIu64 " d %" PRIu64 " h", duration_s / 86400,
                       duration_s % 86400 / 3600);
    } else if (duration_s >= 3600) {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "%" PRIu64 " h %" PRIu64 " min", duration_s / 3600,
                       duration_s % 3600 / 60);
    } else if (duration_s >= 60) {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "%" PRIu64 " min %" PRIu64 " s", duration_s / 60,
                       duration_s % 60);
    } else {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "%" PRIu64 " s", duration_s);
    }
    return out;
}

const char *hpsctl_time_text(int64_t unix_ms, char out[HPSCTL_TEXT_BYTES])
{
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm broken;

    if (unix_ms <= 0 || localtime_r(&seconds, &broken) == NULL ||
        strftime(out, HPSCTL_TEXT_BYTES, "%Y-%m-%d %H:%M:%S", &broken) == 0) {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "-");
    }
    return out;
}

const char *hpsctl_share_text(uint64_t part, uint64_t rest, char out[HPSCTL_TEXT_BYTES])
{
    double all = (double)part + (double)rest;

    if (all == 0) {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "-");
    } else {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "%.1f%%", 100.0 * (double)part / all);
    }
    return out;
}

uint64_t hpsctl_since(uint64_t now, uint64_t before)
{
    return now >= before ? now - before : now;
}

void hpsctl_hits_text(const Hps__V1__TableStats *now, const Hps__V1__TableStats *before, char *out,
                      size_t size)
{
    char text[HPSCTL_TEXT_BYTES];
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < now->n_tiers && used + 1 < size; i++) {
        const Hps__V1__TierStats *tier = now->tiers[i];
        bool same = before != NULL && i < before->n_tiers;
        uint64_t hits =
            hpsctl_since(tier->hit_key_count, same ? before->tiers[i]->hit_key_count : 0);
        uint64_t misses =
            hpsctl_since(tier->miss_key_count, same ? before->tiers[i]->miss_key_count : 0);
        int n = snprintf(out + used, size - used, "%s%s %s", i == 0 ? "" : "  ", tier->tier,
                         hpsctl_share_text(hits, misses, text));
        used += n > 0 ? (size_t)n : 0;
    }
}

int hpsctl_print_buf(struct hps_buf *buf)
{
    hps_status status = buf->status;

    if (status == HPS_OK) {
        (void)fwrite(buf->data, 1, buf->size, stdout);
        (void)fputc('\n', stdout);
        (void)fflush(stdout);
    } else {
        (void)fprintf(stderr, "hpsctl: %s\n", hps_status_text(status));
    }
    hps_buf_fini(buf);
    return status == HPS_OK ? TOOL_OK : TOOL_REFUSED;
}
