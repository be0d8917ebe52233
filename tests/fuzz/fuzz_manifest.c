/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as manifest.json of a model directory, or as config.json of a DLE checkpoint; the first
 * byte selects which. The directory has two tables. If the file is accepted, it is written, and
 * reading it again must give the same. Names in it must not lead out of the directory.
 */
#include "base/heap.h"
#include "config/manifest.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

enum { DIM = 2, N_ROWS = 3 };

static void write_table(const char *path)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, DIM, HPS_DTYPE_FP32};
    struct hps_row_writer *writer;

    HPS_ASSERT(hps_row_writer_open(path, &options, &writer, NULL) == HPS_OK);
    for (hps_key key = 0; key < N_ROWS; key++) {
        const float row[DIM] = {1, 2};
        HPS_ASSERT(hps_row_writer_append(writer, &key, row, 1, NULL) == HPS_OK);
    }
    HPS_ASSERT(hps_row_writer_close(writer, NULL) == HPS_OK);
}

static void first(void)
{
    hps_tmpdir_mkdir(&place_dir, "dir");
    write_table(hps_tmpdir_join(&place_dir, "dir/feature_0.npy"));
    write_table(hps_tmpdir_join(&place_dir, "dir/feature_1.npy"));
}

static bool same_text(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void check_same(const struct hps_manifest *a, const struct hps_manifest *b)
{
    HPS_ASSERT(same_text(a->lineage, b->lineage));
    HPS_ASSERT(a->n_tables == b->n_tables && a->n_positions == b->n_positions);
    for (size_t i = 0; i < a->n_tables; i++) {
        const struct hps_manifest_table *is = &a->tables[i];
        const struct hps_manifest_table *was = &b->tables[i];
        HPS_ASSERT(same_text(is->name, was->name) && is->dim == was->dim);
        HPS_ASSERT(is->dtype == was->dtype && is->n_rows == was->n_rows);
        HPS_ASSERT(is->n_rows_known == was->n_rows_known && is->n_files == was->n_files);
        for (size_t k = 0; k < is->n_files; k++) {
            HPS_ASSERT(same_text(is->files[k].name, was->files[k].name));
            HPS_ASSERT(is->files[k].bytes == was->files[k].bytes);
            HPS_ASSERT(is->files[k].crc32c == was->files[k].crc32c);
        }
    }
    for (size_t i = 0; i < a->n_positions; i++) {
        HPS_ASSERT(same_text(a->positions[i].cluster, b->positions[i].cluster));
        HPS_ASSERT(same_text(a->positions[i].topic, b->positions[i].topic));
        HPS_ASSERT(a->positions[i].partition == b->positions[i].partition);
        HPS_ASSERT(a->positions[i].offset == b->positions[i].offset);
    }
}

static void check_names(const struct hps_manifest *manifest)
{
    for (size_t i = 0; i < manifest->n_tables; i++) {
        const struct hps_manifest_table *table = &manifest->tables[i];
        HPS_ASSERT(hps_model_name_valid(table->name));
        HPS_ASSERT(hps_manifest_find(manifest, table->name) != NULL);
        for (size_t k = 0; k < table->n_files; k++) {
            const char *name = table->files[k].name;
            HPS_ASSERT(name[0] != '/' && name[0] != '\0');
            HPS_ASSERT(strcmp(name, "..") != 0 && strncmp(name, "../", 3) != 0);
            HPS_ASSERT(strstr(name, "/../") == NULL);
        }
    }
}

/* Compares the manifest with the directory. */
static void check_dir(const struct hps_manifest *manifest)
{
    const struct hps_row_desc desc = {.form = HPS_ROW_FORM_NPY,
                                      .n_rows = N_ROWS,
                                      .dim = DIM,
                                      .dtype = HPS_DTYPE_FP32,
                                      .file_dtype = HPS_DTYPE_FP32,
                                      .sorted_unique = true};
    const char *path = hps_tmpdir_join(&place_dir, "dir");
    struct hps_model_dir dir = {0};
    struct hps_error err = {0};

    HPS_ASSERT(hps_model_dir_open(path, NULL, &dir, &err) == HPS_OK && dir.n_tables == 2);
    hps_status status = hps_manifest_check_dir(manifest, &dir, &err);
    HPS_ASSERT(status == HPS_OK || err.text[0] != '\0');
    for (size_t i = 0; i < dir.n_tables; i++) {
        const char *name = dir.tables[i].name;
        hps_ignore(hps_manifest_check_table(manifest, name, &desc, &err));
        hps_ignore(hps_manifest_check_sizes(manifest, name, path, &err));
        hps_ignore(hps_manifest_check_files(manifest, name, NULL, path, NULL, &err));
    }
    hps_model_dir_close(&dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_manifest manifest = {0};
    struct hps_manifest again = {0};
    struct hps_error err = {0};

    if (place_open()) {
        first();
    }
    bool dle = (script_u8(&script) & 1) != 0;
    const char *path = hps_tmpdir_join(&place_dir, dle ? "config.json" : "manifest.json");
    hps_tmpdir_write(&place_dir, dle ? "config.json" : "manifest.json", script.at, script.left);
    hps_status status = dle ? hps_manifest_read_dle(path, &manifest, &err)
                            : hps_manifest_read(path, &manifest, &err);
    if (status != HPS_OK) {
        HPS_ASSERT(err.text[0] != '\0');
        return 0;
    }
    check_names(&manifest);
    check_dir(&manifest);
    if (manifest.n_tables > 0) { /* a DLE checkpoint may name no tables */
        path = hps_tmpdir_join(&place_dir, "again.json");
        HPS_ASSERT(hps_manifest_write(&manifest, path, &err) == HPS_OK);
        HPS_ASSERT(hps_manifest_read(path, &again, &err) == HPS_OK);
        check_same(&again, &manifest);
    }
    hps_manifest_close(&manifest);
    hps_manifest_close(&again);
    return 0;
}
