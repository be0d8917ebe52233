/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads. A table's rows go to a base while its keys are dense; the remaining rows go to the load
 * of the inner store. One thread per load.
 */
#include <inttypes.h>
#include <string.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    ROWS_MIN = 1024,
    ROWS_UNKNOWN = 1 << 20, /* capacity of a base if the number of rows is unknown */
};

struct hps_store_load {
    struct hps_basefile_space *space;
    struct hps_store_load *inner;
    int64_t table;                      /* of the last row; -1: no row was added */
    hps_key key;                        /* of the last row */
    struct hps_basefile_writer *writer; /* of the current table; NULL: no base, or no more of it */
    struct hps_basefile *bases[];       /* [space->n_tables] finished; NULL: none */
};

static const struct hps_store_bulk_ops *inner_ops(const struct hps_basefile_space *space)
{
    return space->inner->store->ops->bulk;
}

static hps_status load_begin(struct hps_space *base, uint64_t rows_expected,
                             uint64_t bytes_expected, struct hps_store_load **out_load,
                             struct hps_error *err)
{
    struct hps_basefile_space *space = (struct hps_basefile_space *)base;
    if (atomic_load(&space->any)) {
        return hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is not empty", space->name);
    }
    struct hps_store_load *load =
        hps_calloc(1, sizeof(*load) + space->n_tables * sizeof(load->bases[0]));
    if (load == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for a load");
    }
    load->space = space;
    load->table = -1;
    if (hps_basefile_of(base)->options.write) { /* bases need less than the inner store expects */
        rows_expected = bytes_expected = 0;
    }
    hps_status status =
        inner_ops(space)->begin(space->inner, rows_expected, bytes_expected, &load->inner, err);
    if (status == HPS_OK) {
        *out_load = load;
    } else {
        hps_free(load);
    }
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Whether the first n keys of a table promise a dense range: the first half of them is dense. */
static bool promising(const struct hps_basefile_options *options, const struct hps_table *table,
                      const hps_key *keys, uint32_t n)
{
    uint32_t half = (n + 1) / 2;
    uint64_t span = keys[half - 1] - keys[0];
    uint64_t rows_min = options->rows_min != 0 ? options->rows_min : ROWS_MIN;
    uint64_t rows = table->n_rows != 0 ? table->n_rows : n;
    return options->write && !options->read_only && rows >= rows_min &&
           span < HPS_BASEFILE_NUMBER_MAX &&
           span + 1 - half <= half / HPS_BASEFILE_HOLE_SHARE + HPS_BASEFILE_HOLES;
}

/* The most keys in the range of a base. */
static uint64_t range_max(const struct hps_table *table)
{
    uint64_t n = table->n_rows != 0 ? table->n_rows : ROWS_UNKNOWN;
    n = n < HPS_BASEFILE_NUMBER_MAX / 2 ? n : HPS_BASEFILE_NUMBER_MAX / 2;
    return n + n / HPS_BASEFILE_HOLE_SHARE + HPS_BASEFILE_HOLES;
}

/* End the base of the current table. */
static hps_status base_end(struct hps_store_load *load, struct hps_error *err)
{
    if (load->writer == NULL) {
        return HPS_OK;
    }
    hps_status status = hps_basefile_writer_finish(load->writer, 0, &load->bases[load->table], err);
    hps_basefile_writer_free(load->writer);
    load->writer = NULL;
    return status;
}

/* Begin a table: end the base of the previous one, and begin a base if the keys are dense. */
static hps_status table_begin(struct hps_store_load *load, const struct hps_table *table,
                              const hps_key *keys, uint32_t n, struct hps_error *err)
{
    struct hps_basefile_store *store = hps_basefile_of(&load->space->base);
    hps_status status = base_end(load, err);
    if (status == HPS_OK && promising(&store->options, table, keys, n)) {
        table = &load->space->tables[table->id]; /* this one stays */
        status = hps_basefile_writer_new(store, table, keys[0], range_max(table), NULL,
                                         &load->writer, err);
    }
    return status;
}

static hps_status check_order(const struct hps_store_load *load, const struct hps_table *table,
                              const hps_key *keys, uint32_t n, struct hps_error *err)
{
    bool same = load->table == table->id;
    bool sorted = load->table <= table->id;
    for (uint32_t i = 0; i < n && sorted; i++) {
        sorted = i > 0 ? keys[i] > keys[i - 1] : !same || keys[0] > load->key;
    }
    return sorted
               ? HPS_OK
               : hps_error_set(err, HPS_INVALID,
                               "rocksdb: table %s: expected keys in ascending order", table->name);
}

static hps_status load_add(struct hps_store_load *load, const struct hps_table *table,
                           const hps_key *keys, const uint8_t *rows, uint32_t n,
                           struct hps_error *err)
{
    if (n == 0) {
        return HPS_OK;
    }
    HPS_ASSERT(table->id < load->space->n_tables);
    hps_status status = check_order(load, table, keys, n, err);
    if (status == HPS_OK && load->table != table->id) {
        status = table_begin(load, table, keys, n, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    load->table = table->id;
    load->key = keys[n - 1];
    uint32_t i = 0;
    while (status == HPS_OK && load->writer != NULL && i < n) {
        if (hps_basefile_writer_takes(load->writer, keys[i])) {
            const uint8_t *row = rows + (size_t)i * table->row_bytes;
            status = hps_basefile_writer_add(load->writer, keys[i], row, err);
            i++;
        } else {
            status = base_end(load, err); /* the other keys are too far away */
        }
    }
    if (status == HPS_OK && i < n) {
        status = inner_ops(load->space)
                     ->add(load->inner, table, keys + i, rows + (size_t)i * table->row_bytes, n - i,
                           err);
    }
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Lookups find the bases. */
static void bases_install(const struct hps_store_load *load)
{
    struct hps_basefile_space *space = load->space;
    hps_lock_acquire(&space->writes);
    for (uint32_t i = 0; i < space->n_tables; i++) {
        if (load->bases[i] != NULL) {
            hps_basefile_install(space, load->bases[i]);
        }
    }
    hps_lock_release(&space->writes);
}

static hps_status load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct hps_basefile_space *space = load->space;
    struct hps_basefile_store *store = hps_basefile_of(&space->base);
    hps_status status = base_end(load, err);
    if (status != HPS_OK) {
        return status;
    }
    hps_lock_acquire(&store->names);
    for (uint32_t i = 0; i < space->n_tables; i++) {
        space->records[i] =
            load->bases[i] != NULL ? load->bases[i]->record : (struct hps_basefile_record){0};
    }
    status = hps_basefile_records_write(space, err);
    if (status == HPS_OK) {
        status = inner_ops(space)->commit(load->inner, err);
    }
    hps_lock_release(&store->names);
    if (status == HPS_OK) {
        bases_install(load);
        hps_free(load);
    }
    return status;
}

static void load_abort(struct hps_store_load *load)
{
    struct hps_basefile_space *space = load->space;
    struct hps_basefile_store *store = hps_basefile_of(&space->base);
    struct hps_error error;
    hps_basefile_writer_free(load->writer);
    hps_lock_acquire(&store->names);
    memset(space->records, 0, space->n_tables * sizeof(*space->records));
    /* If that fails, the next load of the version fails. The drop after it deletes the record. */
    if (hps_basefile_records_write(space, &error) != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "record of a failed load left behind",
                HPS_STR("version", space->name), HPS_STR("error", error.text));
    }
    for (uint32_t i = 0; i < space->n_tables; i++) {
        if (load->bases[i] != NULL) {
            hps_basefile_base_remove(store, load->bases[i]->record.number);
            hps_basefile_base_close(load->bases[i]);
        }
    }
    hps_lock_release(&store->names);
    inner_ops(space)->abort(load->inner);
    hps_free(load);
}

const struct hps_store_bulk_ops hps_basefile_bulk_ops = {
    .begin = load_begin,
    .add = load_add,
    .commit = load_commit,
    .abort = load_abort,
};
