/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as files of a table, in each of the forms, found by listing their directory: wrong
 * headers, sizes that do not match, keys in any order, scales of INT8 rows. The first byte selects
 * the form, the reader's options and the number of rows per read. A second one selects the types of
 * rows in the file and in the result. Reading the files again must give as many rows. Sorting the
 * rows, as a load does, must give each key once, in order.
 */
#include "base/heap.h"
#include "base/rows/modeldir.h"
#include "base/rows/rowfile.h"
#include "base/rows/rowsort.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

enum { ROWS_MAX = 64, ROW_BYTES_MAX = 4096 };

static hps_key keys[ROWS_MAX];
static uint8_t rows[ROWS_MAX * ROW_BYTES_MAX];

enum {
    MODE_TYPED = 4,
    TYPES_SCALES = 64,
    TYPES_TENSORS = 128
}; /* bits of the first byte, and of the second */

/* Writes a file with bytes of the script, which begin with a size of two bytes. */
static void write_part(const char *name, struct script *script)
{
    size_t size = script_u8(script);
    const uint8_t *data = script_take(script, size | (size_t)(script_u8(script) & 3) << 8, &size);

    hps_tmpdir_write(&place_dir, name, data, size);
}

/* Writes the files of one table, "t". */
static void write_files(uint8_t mode, uint8_t types, struct script *script)
{
    static const char *const names[4][2] = {{"dir/t.npy", NULL},
                                            {"dir/t.keys.npy", "dir/t.rows.npy"},
                                            {"dir/t/key", "dir/t/emb_vector"},
                                            {"dir/t.npy", "dir/u.npy"}};
    const char *const *name = names[mode & 3];

    if ((types & TYPES_TENSORS) != 0) {
        hps_tmpdir_write(&place_dir, "dir/t.safetensors", script->at, script->left);
        return;
    }
    if ((mode & 3) == 2) {
        hps_tmpdir_mkdir(&place_dir, "dir/t");
    }
    if ((types & TYPES_SCALES) != 0 && (mode & 3) != 2) {
        write_part("dir/t.scale_bias.npy", script);
    }
    if (name[1] != NULL) {
        write_part(name[1], script);
    }
    hps_tmpdir_write(&place_dir, name[0], script->at, script->left);
}

/* The number of rows; SIZE_MAX: an error. */
static size_t read_rows(struct hps_row_reader *reader, size_t step)
{
    struct hps_error err = {0};
    size_t total = 0;

    for (;;) {
        size_t n = 0;
        hps_status status = hps_row_reader_next(reader, step, keys, rows, &n, &err);
        if (status != HPS_OK) {
            HPS_ASSERT(err.text[0] != '\0');
            return SIZE_MAX;
        }
        HPS_ASSERT(n <= step);
        total += n;
        if (n == 0) {
            return total;
        }
    }
}

static void check_sorted(struct hps_row_reader *reader, uint32_t row_bytes, size_t n_rows)
{
    const struct hps_rowsort_options options = {.row_bytes = row_bytes,
                                                .memory_bytes = HPS_ROWSORT_MEMORY_BYTES_MIN,
                                                .n_rows_hint = n_rows,
                                                .dir = place_dir.path};
    struct hps_rowsort *sort;
    struct hps_rowsort_progress progress;
    struct hps_error err = {0};
    size_t total = 0;
    size_t n = 1;
    hps_key last = 0;

    hps_row_reader_rewind(reader);
    HPS_ASSERT(hps_rowsort_new(&options, &sort, &err) == HPS_OK);
    HPS_ASSERT(hps_rowsort_take(sort, reader, &err) == HPS_OK);
    HPS_ASSERT(hps_rowsort_finish(sort, &err) == HPS_OK);
    while (n > 0) {
        HPS_ASSERT(hps_rowsort_next(sort, ROWS_MAX, keys, rows, &n, &err) == HPS_OK);
        for (size_t i = 0; i < n; i++) {
            HPS_ASSERT(total + i == 0 || keys[i] > last);
            last = keys[i];
        }
        total += n;
    }
    hps_rowsort_progress_get(sort, &progress);
    HPS_ASSERT(total + progress.n_duplicates == n_rows && progress.n_rows_out == total);
    hps_rowsort_free(sort);
}

static void read_table(const struct hps_model_table *table, uint8_t mode, uint8_t types)
{
    const struct hps_row_options options = {.form = table->form,
                                            .dim = (mode & 8) != 0 ? 2 : 0,
                                            .key_bytes = (mode & 16) != 0 ? 4 : 8,
                                            .nan_allowed = (mode & 32) != 0,
                                            .dtype = (types >> 3 & 7) % HPS_DTYPE_STORED_END,
                                            .row_dtype = (types & 7) % HPS_DTYPE_STORED_END};
    struct hps_row_reader *reader;
    struct hps_error err = {0};

    hps_status status = hps_row_reader_open(table->path, &options, &reader, &err);
    if (status != HPS_OK) {
        HPS_ASSERT(err.text[0] != '\0');
        return;
    }
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    size_t row_bytes = (size_t)hps_dtype_row_bytes(desc->dtype, desc->dim);
    HPS_ASSERT(options.row_dtype == 0 || desc->dtype == options.row_dtype);
    HPS_ASSERT(desc->dtype == desc->file_dtype || !hps_dtype_is_int8(desc->file_dtype));
    HPS_ASSERT(desc->dim > 0 && desc->dim <= HPS_ROW_DIM_MAX);
    if (row_bytes <= ROW_BYTES_MAX) {
        size_t n = read_rows(reader, (mode & 64) != 0 ? 1 : ROWS_MAX);
        HPS_ASSERT(n == SIZE_MAX || n == desc->n_rows);
        hps_row_reader_rewind(reader);
        HPS_ASSERT(read_rows(reader, ROWS_MAX) == n);
        hps_row_reader_rewind(reader);
        HPS_ASSERT(hps_row_reader_scan_keys(reader, &err) == HPS_OK);
        if (n != SIZE_MAX) {
            check_sorted(reader, (uint32_t)row_bytes, n);
        }
    }
    hps_row_reader_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_model_dir dir = {0};
    struct hps_fingerprint print;
    struct hps_error err = {0};

    (void)place_open();
    hps_tmpdir_mkdir(&place_dir, "dir");
    uint8_t mode = script_u8(&script);
    uint8_t types = (mode & MODE_TYPED) != 0 ? script_u8(&script) : 0;
    write_files(mode, types, &script);
    hps_status status = hps_model_dir_open(hps_tmpdir_join(&place_dir, "dir"), NULL, &dir, &err);
    bool is_tensors = (types & TYPES_TENSORS) != 0;
    HPS_ASSERT(status == HPS_OK ? dir.n_tables >= 1 && (is_tensors || dir.n_tables <= 2)
                                : is_tensors && err.text[0] != '\0');
    if (status != HPS_OK) {
        hps_tmpdir_remove(&place_dir, "dir");
        return 0;
    }
    HPS_ASSERT(hps_model_fingerprint(dir.tables, dir.n_tables, &print, &err) == HPS_OK);
    for (size_t i = 0; i < dir.n_tables; i++) {
        read_table(&dir.tables[i], mode, types);
    }
    hps_model_dir_close(&dir);
    hps_tmpdir_remove(&place_dir, "dir");
    return 0;
}
