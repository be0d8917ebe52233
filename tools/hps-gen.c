/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-gen: writes embedding tables in which every value can be verified (base/rows/rowgen.h), in
 * any format that hpsd reads, with ps.json and manifest.json. It writes into a hidden directory
 * next to the target, which it renames at the end. So an interrupted run leaves no partial target.
 * One thread.
 */
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "base/rows/fileio.h"
#include "base/rows/modeldir.h"
#include "base/rows/rowgen.h"
#include "config/manifest.h"
#include "tools/hps-gen.h"
#include "tools/tool.h"

enum { PIECE_BYTES = 1 << 20, PROGRESS_US = 200000 };

/* Criteo 1TB as in MLPerf's DLRM-DCNv2: numbers of rows, at most 40 M. */
static const uint64_t dcnv2_rows[] = {
    40000000, 39060,    17295,    7424,     20265,  3,     7122, 1543, 63,
    40000000, 3067956,  405282,   10,       2209,   11938, 155,  4,    976,
    14,       40000000, 40000000, 40000000, 590152, 12973, 108,  36};
_Static_assert(sizeof(dcnv2_rows) / sizeof(dcnv2_rows[0]) == GEN_DCNV2_TABLES, "one per table");

uint64_t gen_table_rows(const struct gen *gen, uint64_t table)
{
    HPS_ASSERT(table < gen->n_tables);
    if (!gen->preset) {
        return gen->rows;
    }
    uint64_t rows = (uint64_t)ceil((double)dcnv2_rows[table] * gen->scale);
    return rows == 0 ? 1 : rows;
}

static size_t row_bytes(const struct gen *gen)
{
    HPS_ASSERT(gen->dim > 0);
    return (size_t)hps_dtype_row_bytes(gen->dtype, gen->dim);
}

char *gen_table_path(const struct gen *gen, const char *dir, uint64_t table)
{
    const char *tail = gen->form == HPS_ROW_FORM_HUGECTR ? ""
                       : gen->form == HPS_ROW_FORM_NPY   ? ".npy"
                                                         : ".rows.npy";

    return hps_file_path("%s/feature_%" PRIu64 "%s", dir, table, tail);
}

static void show_progress(struct gen *gen, uint64_t table, bool last)
{
    if (!tool_progress_due(&gen->progress, last ? 0 : PROGRESS_US)) {
        return;
    }
    double seconds = (double)(hps_clock_us() - gen->begin_us) / 1e6;
    tool_progress_draw(&gen->progress, "table %" PRIu64 "/%" PRIu64 "  %.1f of %.1f MB  %.0f MB/s",
                       table + 1, gen->n_tables, (double)gen->bytes_done / 1e6,
                       (double)gen->bytes_total / 1e6,
                       seconds > 0 ? (double)gen->bytes_done / 1e6 / seconds : 0.0);
}

/* Steps of this size visit 0 ... n-1 out of order. The step is near n / golden ratio and coprime to
 * n. */
static uint64_t shuffle_step(uint64_t n)
{
    HPS_ASSERT(n > 0);
    uint64_t step = (uint64_t)((double)n * 0.6180339887498949) | 1;

    for (;; step += 2) {
        uint64_t a = n;
        uint64_t b = step;

        while (b != 0) {
            uint64_t rest = a % b;

            a = b;
            b = rest;
        }
        if (a == 1) {
            return step;
        }
    }
}

/* The key at position `place` of the file. */
static hps_key key_at(const struct gen *gen, uint64_t place, uint64_t n, uint64_t step)
{
    HPS_DEBUG_ASSERT(place < n);
    uint64_t row = place;

    if (gen->form == HPS_ROW_FORM_HUGECTR) {
        row = (uint64_t)(((unsigned __int128)(n - 1 - place) * step + n / 2) % n);
    }
    return hps_rowgen_key(row, gen->hashed);
}

/* Buffers for the rows of one write. */
struct gen_piece {
    size_t n_rows;
    hps_key *keys;
    uint8_t *rows;
    float *values; /* of one row */
};

static hps_status write_rows(struct gen *gen, uint64_t table, struct hps_row_writer *writer,
                             const struct gen_piece *piece, struct hps_error *err)
{
    HPS_ASSERT(piece->n_rows > 0);
    hps_key *keys = piece->keys;
    uint64_t n = gen_table_rows(gen, table);
    uint64_t step = shuffle_step(n);
    size_t stride = row_bytes(gen);

    for (uint64_t place = 0; place < n;) {
        size_t m = n - place < piece->n_rows ? (size_t)(n - place) : piece->n_rows;

        if (tool_interrupted()) {
            return hps_error_set(err, HPS_CANCELLED, "interrupted; nothing was written");
        }
        for (size_t i = 0; i < m; i++) {
            keys[i] = key_at(gen, place + i, n, step);
            hps_rowgen_row(gen->seed, (uint32_t)table, keys[i], (uint32_t)gen->dim, piece->values);
            hps_row_convert(piece->rows + i * stride, gen->dtype, piece->values, HPS_DTYPE_FP32,
                            (uint32_t)gen->dim);
        }
        hps_status status = hps_row_writer_append(writer, keys, piece->rows, m, err);
        if (status != HPS_OK) {
            return status;
        }
        place += m;
        gen->bytes_done += m * stride;
        show_progress(gen, table, false);
    }
    return HPS_OK;
}

static hps_status write_table(struct gen *gen, uint64_t table, struct hps_error *err)
{
    HPS_ASSERT(table < gen->n_tables && gen->stage_path != NULL);
    struct hps_row_writer_options writer_options = {
        .form = gen->form, .dim = (uint32_t)gen->dim, .dtype = gen->dtype};
    struct hps_row_writer *writer = NULL;
    size_t n_rows = PIECE_BYTES / row_bytes(gen) + 1;
    const struct gen_piece piece = {.n_rows = n_rows,
                                    .keys = hps_alloc(n_rows * sizeof(hps_key)),
                                    .rows = hps_alloc(n_rows * row_bytes(gen)),
                                    .values = hps_alloc(gen->dim * sizeof(float))};
    char *path = gen_table_path(gen, gen->stage_path, table);
    hps_status status;

    if (piece.keys == NULL || piece.rows == NULL || piece.values == NULL || path == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    } else {
        status = hps_row_writer_open(path, &writer_options, &writer, err);
    }
    if (status == HPS_OK) {
        status = write_rows(gen, table, writer, &piece, err);
        if (status == HPS_OK) {
            status = hps_row_writer_close(writer, err);
        } else {
            hps_row_writer_abort(writer);
        }
    }
    hps_free(piece.keys);
    hps_free(piece.rows);
    hps_free(piece.values);
    hps_free(path);
    return status;
}

/* Size and checksum of a written file. Takes `name`; NULL: no memory. */
static hps_status describe_file(const struct gen *gen, char *name, struct hps_manifest_file *file,
                                struct hps_error *err)
{
    file->name = name;
    char *path = name == NULL ? NULL : hps_file_path("%s/%s", gen->stage_path, name);
    if (path == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    hps_status status = hps_crc32c_file(path, NULL, &file->crc32c, &file->bytes, err);
    file->bytes_known = true;
    file->crc32c_known = true;
    hps_free(path);
    return status;
}

static hps_status describe_table(const struct gen *gen, uint64_t table,
                                 struct hps_manifest_table *said, struct hps_error *err)
{
    HPS_ASSERT(said->n_files == 0);
    said->name = hps_file_path("feature_%" PRIu64, table);
    said->dim = (uint32_t)gen->dim;
    said->dtype = gen->dtype;
    said->n_rows = gen_table_rows(gen, table);
    said->n_rows_known = true;
    said->files = hps_calloc(3, sizeof(*said->files));
    if (said->name == NULL || said->files == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    const char *const tails[HPS_ROW_FORM_NPY_PAIR + 1][2] = {
        [HPS_ROW_FORM_HUGECTR] = {"/key", "/emb_vector"},
        [HPS_ROW_FORM_NPY] = {NULL, ".npy"},
        [HPS_ROW_FORM_NPY_PAIR] = {".keys.npy", ".rows.npy"}};
    const char *const names[] = {tails[gen->form][0], tails[gen->form][1],
                                 hps_dtype_is_int8(gen->dtype) ? ".scale_bias.npy" : NULL};
    hps_status status = HPS_OK;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == HPS_OK; i++) {
        if (names[i] != NULL) {
            status = describe_file(gen, hps_file_path("%s%s", said->name, names[i]),
                                   &said->files[said->n_files++], err);
        }
    }
    return status;
}

static hps_status write_manifest(const struct gen *gen, struct hps_manifest *manifest,
                                 struct hps_error *err)
{
    char *path = hps_file_path("%s/manifest.json", gen->stage_path);
    if (path == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    hps_status status = hps_manifest_write(manifest, path, err);
    hps_free(path);
    return status;
}

static hps_status write_all(struct gen *gen, struct hps_error *err)
{
    struct hps_manifest manifest = {0};
    hps_status status = HPS_OK;

    manifest.tables = hps_calloc(gen->n_tables, sizeof(*manifest.tables));
    if (manifest.tables == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    manifest.n_tables = gen->n_tables;
    for (uint64_t i = 0; i < gen->n_tables && status == HPS_OK; i++) {
        status = write_table(gen, i, err);
        if (status == HPS_OK) {
            status = describe_table(gen, i, &manifest.tables[i], err);
        }
    }
    if (status == HPS_OK) {
        status = write_manifest(gen, &manifest, err);
    }
    if (status == HPS_OK) {
        status = gen_write_json(gen, "ps.json", gen_put_ps_json, err);
    }
    if (status == HPS_OK && gen->dle) {
        status = gen_write_json(gen, "config.json", gen_put_dle_json, err);
    }
    hps_manifest_close(&manifest);
    return status;
}

static hps_status check_space(const struct gen *gen, struct hps_error *err)
{
    struct statvfs fs;

    if (statvfs(gen->stage_path, &fs) != 0) {
        return hps_file_error(err, errno, "cannot read the free space of", gen->stage_path);
    }
    uint64_t bytes_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes_free < gen->bytes_total) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "%s: %" PRIu64 " bytes free, expected at least "
                             "%" PRIu64,
                             gen->out_path, bytes_free, gen->bytes_total);
    }
    return HPS_OK;
}

/* Makes a path absolute; its last part need not exist. owner: *out_path is the caller's. */
static hps_status absolute(const char *path, char **out_path, struct hps_error *err)
{
    char real[PATH_MAX];
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    char *trimmed = hps_strndup(path, n);
    if (trimmed == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    hps_status status = HPS_OK;
    char *slash = strrchr(trimmed, '/');
    char *result = NULL;
    if (realpath(trimmed, real) != NULL) {
        result = hps_strdup(real);
    } else {
        const char *base = slash == NULL ? trimmed : slash + 1;
        const char *parent = slash == NULL ? "." : slash == trimmed ? "/" : trimmed;
        if (slash != NULL) {
            *slash = '\0';
        }
        if (realpath(parent, real) == NULL) {
            status = hps_file_error(err, errno, "cannot find directory", parent);
        } else {
            result = hps_file_path("%s/%s", strcmp(real, "/") == 0 ? "" : real, base);
        }
    }
    hps_free(trimmed);
    if (status == HPS_OK && result == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    if (status == HPS_OK) {
        *out_path = result;
    }
    return status;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    (void)remove(path); /* a remainder is hidden and ends in .tmp */
    return 0;
}

/* Determines the paths and creates the stage directory. */
static hps_status begin(struct gen *gen, struct hps_error *err)
{
    HPS_ASSERT(gen->out_path == NULL && gen->stage_path == NULL);
    hps_status status = absolute(gen->out, &gen->out_path, err);

    if (status == HPS_OK && gen->state_dir != NULL) {
        char *state_dir = NULL;
        status = absolute(gen->state_dir, &state_dir, err);
        gen->state_path = state_dir == NULL ? NULL : hps_file_path("%s/rocksdb", state_dir);
        hps_free(state_dir);
    } else if (status == HPS_OK) {
        gen->state_path = hps_file_path("%s/rocksdb", gen->out_path);
    }
    if (status != HPS_OK) {
        return status;
    }
    /* Fails now instead of at the final rename, which creates an empty directory again. */
    if (rmdir(gen->out_path) != 0 && errno != ENOENT) {
        return hps_file_error(err, errno, "cannot write to", gen->out_path);
    }
    gen->stage_path = hps_file_temp_name(gen->out_path);
    if (gen->stage_path == NULL || gen->state_path == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    if (mkdir(gen->stage_path, 0777) != 0) {
        status = hps_file_error(err, errno, "cannot create", gen->stage_path);
        hps_free(gen->stage_path);
        gen->stage_path = NULL;
    }
    return status;
}

static hps_status finish(struct gen *gen, struct hps_error *err)
{
    HPS_ASSERT(gen->stage_path != NULL && gen->bytes_done == gen->bytes_total);
    hps_status status = HPS_OK;

    if (rename(gen->stage_path, gen->out_path) != 0) {
        return hps_file_error(err, errno, "cannot rename to", gen->out_path);
    }
    hps_free(gen->stage_path);
    gen->stage_path = NULL;
    status = hps_file_sync_parent(gen->out_path, err);
    if (status == HPS_OK) {
        show_progress(gen, gen->n_tables - 1, true);
    }
    return status;
}

static hps_status generate(struct gen *gen, struct hps_error *err)
{
    HPS_ASSERT(gen->n_tables > 0);
    uint64_t n_rows = 0;

    for (uint64_t i = 0; i < gen->n_tables; i++) {
        n_rows += gen_table_rows(gen, i);
    }
    /* 2^12 tables x 2^40 rows x 2^18 bytes would overflow. No disk holds 2^63 bytes. */
    if (__builtin_mul_overflow(n_rows, (uint64_t)row_bytes(gen), &gen->bytes_total)) {
        return hps_error_set(err, HPS_EXHAUSTED, "%" PRIu64 " rows of %zu bytes: too many bytes",
                             n_rows, row_bytes(gen));
    }
    gen->begin_us = hps_clock_us();
    gen->progress.out = isatty(STDERR_FILENO) != 0 ? stderr : NULL;
    hps_status status = begin(gen, err);
    if (status == HPS_OK) {
        status = check_space(gen, err);
    }
    if (status == HPS_OK) {
        status = write_all(gen, err);
    }
    if (status == HPS_OK) {
        status = finish(gen, err);
    }
    if (gen->stage_path != NULL) {
        (void)nftw(gen->stage_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
    tool_progress_end(&gen->progress);
    if (status == HPS_OK) {
        printf("%s: model %s, %" PRIu64 " tables, %" PRIu64 " rows, %.1f MB, %.1f s\n",
               gen->out_path, gen->model, gen->n_tables, n_rows, (double)gen->bytes_total / 1e6,
               (double)(hps_clock_us() - gen->begin_us) / 1e6);
    }
    return status;
}

int main(int argc, char **argv)
{
    struct gen gen;
    struct hps_error err = {0};
    int code;

    if (!gen_options(argc, argv, &gen, &code)) {
        return code;
    }
    tool_interrupts_note(true);
    hps_status status = generate(&gen, &err);
    hps_free(gen.out_path);
    hps_free(gen.stage_path);
    hps_free(gen.state_path);
    if (status == HPS_OK) {
        return TOOL_OK;
    }
    (void)fprintf(stderr, "hps-gen: %s\n", err.text);
    if (tool_interrupted()) {
        /* End by the signal, so that a loop of the shell stops too. */
        (void)signal(tool_interrupt(), SIG_DFL);
        (void)raise(tool_interrupt());
    }
    return TOOL_REFUSED;
}
