/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of a model directory and the fingerprint of their files. See base/rows/modeldir.h.
 */
#include "base/rows/modeldir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/safetensors.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-';
}

bool hps_model_name_valid(const char *name)
{
    size_t n = 0;

    for (; name[n] != '\0'; n++) {
        if (!is_name_char(name[n]) || n == HPS_MODEL_NAME_BYTES_MAX) {
            return false;
        }
    }
    return n > 0;
}

bool hps_label_valid(const char *label)
{
    bool is_number = true;
    size_t n = 0;

    for (; label[n] != '\0'; n++) {
        bool legal = is_name_char(label[n]) || label[n] == '.';
        if (!legal || n == HPS_MODEL_NAME_BYTES_MAX) {
            return false;
        }
        is_number = is_number && is_digit(label[n]);
    }
    return n > 0 && !is_number && label[0] != '-' && label[0] != '.';
}

static hps_status check_name(const char *name, const char *path, const char *advice,
                             struct hps_error *err)
{
    if (hps_model_name_valid(name)) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID,
                         "%s: table name '%s', expected 1 to %d letters, digits, '_' or '-'%s",
                         path, name, HPS_MODEL_NAME_BYTES_MAX, advice);
}

static hps_status no_memory(struct hps_error *err, const char *path)
{
    return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to list it", path);
}

/* Length of `name` without `tail`; 0 if it does not end with `tail` or is equal to it. */
static size_t stem_size(const char *name, const char *tail)
{
    size_t n = strlen(name);
    size_t n_tail = strlen(tail);

    return n > n_tail && strcmp(name + n - n_tail, tail) == 0 ? n - n_tail : 0;
}

/* The digits at *at without leading zeros, and their number; moves *at past them. */
static size_t take_number(const char **at, const char **out_digits)
{
    while (**at == '0') {
        (*at)++;
    }
    *out_digits = *at;
    while (is_digit(**at)) {
        (*at)++;
    }
    return (size_t)(*at - *out_digits);
}

/* Compare digits as numbers and other characters as bytes; leading zeros decide only between names
 * that are equal otherwise. */
static int compare_names(const char *left, const char *right)
{
    const char *a = left, *b = right;
    while (*a != '\0' && *b != '\0') {
        if (!is_digit(*a) || !is_digit(*b)) {
            if (*a != *b) {
                return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            }
            a++;
            b++;
            continue;
        }
        const char *a_digits, *b_digits;
        size_t n_a = take_number(&a, &a_digits), n_b = take_number(&b, &b_digits);
        int order = n_a != n_b ? (n_a < n_b ? -1 : 1) : memcmp(a_digits, b_digits, n_a);
        if (order != 0) {
            return order;
        }
    }
    return *a != *b ? (*a == '\0' ? -1 : 1) : strcmp(left, right);
}

static int compare_tables(const void *left, const void *right)
{
    return compare_names(((const struct hps_model_table *)left)->name,
                         ((const struct hps_model_table *)right)->name);
}

void hps_model_table_close(struct hps_model_table *table)
{
    hps_free(table->name);
    hps_free(table->path);
    *table = (struct hps_model_table){0};
}

void hps_model_dir_close(struct hps_model_dir *dir)
{
    for (size_t i = 0; i < dir->n_tables; i++) {
        hps_model_table_close(&dir->tables[i]);
    }
    hps_free(dir->tables);
    hps_free(dir->path);
    hps_free(dir->manifest_path);
    hps_free(dir->dle_path);
    *dir = (struct hps_model_dir){0};
}

/* Add a table; takes `path` (NULL: no memory). The array grows by doubling. */
static hps_status add_table(struct hps_model_dir *dir, const char *name, size_t name_size,
                            enum hps_row_form form, char *path, struct hps_error *err)
{
    struct hps_model_table table = {
        .roots = dir->roots, .name = hps_strndup(name, name_size), .form = form, .path = path};
    hps_status status = HPS_OK;

    if (table.name == NULL || path == NULL) {
        status = no_memory(err, dir->path);
    } else if (dir->n_tables == HPS_MODEL_TABLES_MAX) {
        status = hps_error_set(err, HPS_INVALID, "%s: more than %d tables", dir->path,
                               HPS_MODEL_TABLES_MAX);
    } else {
        status = check_name(table.name, path,
                            "; give the table another name with --table, or with --config of "
                            "hpsctl load",
                            err);
    }
    if (status == HPS_OK && (dir->n_tables & (dir->n_tables - 1)) == 0) {
        size_t capacity = dir->n_tables == 0 ? 1 : 2 * dir->n_tables;
        struct hps_model_table *tables = hps_realloc(dir->tables, capacity * sizeof(table));
        if (tables == NULL) {
            status = no_memory(err, dir->path);
        } else {
            dir->tables = tables;
        }
    }
    if (status != HPS_OK) {
        hps_model_table_close(&table);
        return status;
    }
    dir->tables[dir->n_tables++] = table;
    return HPS_OK;
}

static hps_status exists(const struct hps_roots *roots, const char *path, bool *out_exists,
                         struct hps_error *err)
{
    struct hps_error why;
    struct stat st;

    hps_status status = hps_roots_stat(roots, path, &st, &why);
    if (status == HPS_OK || status == HPS_NOT_FOUND) {
        *out_exists = status == HPS_OK;
        return HPS_OK;
    }
    return hps_error_set(err, status, "%s", why.text);
}

/* Does `<path>/<name>` exist? */
static hps_status exists_in(const struct hps_roots *roots, const char *path, const char *name,
                            bool *out_exists, struct hps_error *err)
{
    char *full = hps_file_path("%s/%s", path, name);

    if (full == NULL) {
        return no_memory(err, path);
    }
    hps_status status = exists(roots, full, out_exists, err);
    hps_free(full);
    return status;
}

/* Whether the directory `path` is in HugeCTR form. Half of one is an error. */
static hps_status is_hugectr(const struct hps_roots *roots, const char *path, bool *out_is,
                             struct hps_error *err)
{
    bool has_keys = false;
    bool has_rows = false;

    hps_status status = exists_in(roots, path, "key", &has_keys, err);
    if (status == HPS_OK) {
        status = exists_in(roots, path, "emb_vector", &has_rows, err);
    }
    if (status == HPS_OK && has_keys != has_rows) {
        status = hps_error_set(err, HPS_INVALID, "%s: has '%s' but no '%s'", path,
                               has_keys ? "key" : "emb_vector", has_keys ? "emb_vector" : "key");
    }
    if (status == HPS_OK) {
        *out_is = has_keys;
    }
    return status;
}

static hps_status add_directory(struct hps_model_dir *dir, const char *name, struct hps_error *err)
{
    char *path = hps_file_path("%s/%s", dir->path, name);
    bool is = false;

    if (path == NULL) {
        return no_memory(err, dir->path);
    }
    hps_status status = is_hugectr(dir->roots, path, &is, err);
    if (status != HPS_OK || !is) {
        hps_free(path);
        return status;
    }
    return add_table(dir, name, strlen(name), HPS_ROW_FORM_HUGECTR, path, err);
}

/* One half of a pair was found. The half with the rows adds the pair; each half requires the other.
 */
static hps_status add_half(struct hps_model_dir *dir, const char *name, size_t stem, bool is_rows,
                           struct hps_error *err)
{
    const char *other_tail = is_rows ? ".keys.npy" : ".rows.npy";
    char *other = hps_file_path("%.*s%s", (int)stem, name, other_tail);
    bool has_other = false;

    if (other == NULL) {
        return no_memory(err, dir->path);
    }
    hps_status status = exists_in(dir->roots, dir->path, other, &has_other, err);
    if (status == HPS_OK && !has_other) {
        status =
            hps_error_set(err, HPS_INVALID, "%s: has '%s' but no '%s'", dir->path, name, other);
    }
    hps_free(other);
    if (status != HPS_OK || !is_rows) {
        return status;
    }
    return add_table(dir, name, stem, HPS_ROW_FORM_NPY_PAIR,
                     hps_file_path("%s/%s", dir->path, name), err);
}

/* Check for a file that `stem`.scale_bias.npy could belong to. */
static hps_status check_scales(const struct hps_model_dir *dir, const char *name, size_t stem,
                               struct hps_error *err)
{
    static const char *const tails[] = {".npy", ".rows.npy"};
    hps_status status = HPS_OK;
    bool has_rows = false;

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]) && status == HPS_OK && !has_rows; i++) {
        char *rows = hps_file_path("%.*s%s", (int)stem, name, tails[i]);
        if (rows == NULL) {
            return no_memory(err, dir->path);
        }
        status = exists_in(dir->roots, dir->path, rows, &has_rows, err);
        hps_free(rows);
    }
    if (status == HPS_OK && !has_rows) {
        status =
            hps_error_set(err, HPS_INVALID, "%s: has '%s' but no '%.*s.npy' or '%.*s.rows.npy'",
                          dir->path, name, (int)stem, name, (int)stem, name);
    }
    return status;
}

/* Check that the parts before and after a file name-00002-of-00005.safetensors exist. */
static hps_status check_parts(const struct hps_model_dir *dir, const char *path,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    const char *of = NULL;
    for (const char *at = strstr(name, "-of-"); at != NULL; at = strstr(at + 1, "-of-")) {
        of = at;
    }
    const char *begin = of;
    while (begin != NULL && begin > name && is_digit(begin[-1])) {
        begin--;
    }
    if (of == NULL || begin == of || begin == name || begin[-1] != '-' || !is_digit(of[4])) {
        return HPS_OK;
    }
    unsigned long part = strtoul(begin, NULL, 10), n = strtoul(of + 4, NULL, 10);
    for (unsigned long i = part - 1; part > 0 && i <= part + 1 && status == HPS_OK; i++) {
        bool is = i == part || i < 1 || i > n;
        char *other =
            is ? NULL
               : hps_file_path("%.*s%0*lu%s", (int)(begin - path), path, (int)(of - begin), i, of);
        if (!is) {
            status = other == NULL ? no_memory(err, path) : exists(dir->roots, other, &is, err);
        }
        if (status == HPS_OK && !is) {
            status = hps_error_set(err, HPS_INVALID, "%s: there is no '%s'", path, other);
        }
        hps_free(other);
    }
    return status;
}

static hps_status add_tensor(struct hps_model_dir *dir, const char *path, const char *tensor,
                             struct hps_error *err)
{
    char *name = hps_strdup(tensor);

    if (name == NULL) {
        return no_memory(err, path);
    }
    for (size_t i = 0; name[i] != '\0'; i++) {
        if (!is_name_char(name[i])) {
            name[i] = '_';
        }
    }
    hps_status status =
        strchr(tensor, ':') != NULL
            ? hps_error_set(err, HPS_INVALID, "%s: tensor '%.200s', expected a name without ':'",
                            path, tensor)
            : add_table(dir, name, strlen(name), HPS_ROW_FORM_SAFETENSORS,
                        hps_file_path("%s:%s", path, tensor), err);
    hps_free(name);
    return status;
}

/* Add each table of a safetensors file. */
static hps_status add_tensors(struct hps_model_dir *dir, const char *path, struct hps_error *err)
{
    struct hps_safetensors set = {0};
    uint64_t bytes = 0;
    int fd = -1;

    hps_status status = check_parts(dir, path, err);
    if (status == HPS_OK) {
        status = hps_roots_open_read(dir->roots, path, &fd, &bytes, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    status = hps_safetensors_read(fd, path, bytes, &set, err);
    close(fd);
    for (size_t i = 0; i < set.n_tensors && status == HPS_OK; i++) {
        if (hps_tensor_is_table(&set.tensors[i]) &&
            !hps_safetensors_is_companion(&set, &set.tensors[i])) {
            status = add_tensor(dir, path, set.tensors[i].name, err);
        }
    }
    hps_safetensors_close(&set);
    return status;
}

static hps_status add_entry(struct hps_model_dir *dir, const char *name, struct hps_error *err)
{
    struct stat st;
    size_t stem;

    char *path = hps_file_path("%s/%s", dir->path, name);
    if (path == NULL) {
        return no_memory(err, dir->path);
    }
    hps_status status = hps_roots_stat(dir->roots, path, &st, err);
    bool is_tensors = status == HPS_OK && !S_ISDIR(st.st_mode) && hps_safetensors_is_path(name);
    if (is_tensors) {
        status = add_tensors(dir, path, err);
    }
    hps_free(path);
    if (status != HPS_OK || is_tensors) {
        return status;
    }
    if (S_ISDIR(st.st_mode)) {
        return add_directory(dir, name, err);
    }
    if ((stem = stem_size(name, ".rows.npy")) > 0) {
        return add_half(dir, name, stem, true, err);
    }
    if ((stem = stem_size(name, ".keys.npy")) > 0) {
        return add_half(dir, name, stem, false, err);
    }
    if ((stem = stem_size(name, ".scale_bias.npy")) > 0) {
        return check_scales(dir, name, stem, err);
    }
    if ((stem = stem_size(name, ".npy")) > 0) {
        return add_table(dir, name, stem, HPS_ROW_FORM_NPY, hps_file_path("%s/%s", dir->path, name),
                         err);
    }
    return HPS_OK;
}

static hps_status add_entries(struct hps_model_dir *dir, struct hps_error *err)
{
    DIR *stream = NULL;
    struct stat st;
    int fd = -1;

    hps_status status = hps_roots_stat(dir->roots, dir->path, &st, err);
    if (status == HPS_OK && S_ISREG(st.st_mode) && hps_safetensors_is_path(dir->path)) {
        return add_tensors(dir, dir->path, err);
    }
    if (status == HPS_OK && S_ISREG(st.st_mode)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: a file, expected the directory of a model; give the file of a "
                             "table with --table of hpsctl load",
                             dir->path);
    }
    if (status == HPS_OK) {
        status = hps_roots_open_path(dir->roots, dir->path, O_RDONLY | O_DIRECTORY, &fd, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    stream = fdopendir(fd);
    if (stream == NULL) {
        status = hps_file_error(err, errno, "cannot open directory", dir->path);
        close(fd);
        return status;
    }
    while (status == HPS_OK) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (entry == NULL) {
            if (errno != 0) {
                status = hps_file_error(err, errno, "cannot read directory", dir->path);
            }
            break;
        }
        if (entry->d_name[0] != '.') {
            status = add_entry(dir, entry->d_name, err);
        }
    }
    closedir(stream);
    return status;
}

/* Find manifest.json, and config.json if feature_0.npy is in the same directory. */
static hps_status find_descriptions(struct hps_model_dir *dir, struct hps_error *err)
{
    bool has_manifest = false;
    bool has_config = false;
    struct stat st;

    hps_status status = hps_roots_stat(dir->roots, dir->path, &st, err);
    if (status != HPS_OK || !S_ISDIR(st.st_mode)) {
        return status; /* a safetensors file */
    }
    status = exists_in(dir->roots, dir->path, "manifest.json", &has_manifest, err);
    if (status == HPS_OK) {
        status = exists_in(dir->roots, dir->path, "config.json", &has_config, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    bool is_dle = has_config && strcmp(dir->tables[0].name, "feature_0") == 0 &&
                  dir->tables[0].form == HPS_ROW_FORM_NPY;
    if (has_manifest) {
        dir->manifest_path = hps_file_path("%s/manifest.json", dir->path);
    }
    if (is_dle) {
        dir->dle_path = hps_file_path("%s/config.json", dir->path);
    }
    if ((has_manifest && dir->manifest_path == NULL) || (is_dle && dir->dle_path == NULL)) {
        return no_memory(err, dir->path);
    }
    for (size_t i = 0; is_dle && i < dir->n_tables; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "feature_%zu", i);
        if (strcmp(dir->tables[i].name, name) != 0) {
            return hps_error_set(
                err, HPS_INVALID,
                "%s: got '%s.npy', expected '%s.npy', as config.json is in the directory",
                dir->path, dir->tables[i].name, name);
        }
    }
    return HPS_OK;
}

static hps_status check_tables(struct hps_model_dir *dir, struct hps_error *err)
{
    bool is_table = false;

    if (dir->n_tables == 0 && hps_safetensors_is_path(dir->path)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: no tensor of 2 dimensions of F32, F16, BF16, U8 or I8",
                             dir->path);
    }
    if (dir->n_tables == 0) {
        hps_status status = is_hugectr(dir->roots, dir->path, &is_table, err);
        if (status != HPS_OK) {
            return status;
        }
        return hps_error_set(err, HPS_INVALID,
                             is_table ? "%s: holds the files of one table, expected its parent "
                                        "directory, with one entry per table"
                                      : "%s: no tables: expected T/key and T/emb_vector, T.npy, or "
                                        "T.keys.npy and T.rows.npy, or *.safetensors; python "
                                        "-m hpsd convert makes them from other formats",
                             dir->path);
    }
    qsort(dir->tables, dir->n_tables, sizeof(dir->tables[0]), compare_tables);
    for (size_t i = 1; i < dir->n_tables; i++) {
        if (strcmp(dir->tables[i - 1].name, dir->tables[i].name) == 0) {
            return hps_error_set(err, HPS_INVALID, "%s: table '%s' twice: %s and %s", dir->path,
                                 dir->tables[i].name, dir->tables[i - 1].path, dir->tables[i].path);
        }
    }
    return find_descriptions(dir, err);
}

hps_status hps_model_dir_open(const char *path, const struct hps_roots *roots,
                              struct hps_model_dir *out_dir, struct hps_error *err)
{
    struct hps_model_dir dir = {.roots = roots};
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    dir.path = hps_strndup(path, n);
    if (dir.path == NULL) {
        return no_memory(err, path);
    }
    hps_status status = add_entries(&dir, err);
    if (status == HPS_OK) {
        status = check_tables(&dir, err);
    }
    if (status != HPS_OK) {
        hps_model_dir_close(&dir);
        return status;
    }
    *out_dir = dir;
    return HPS_OK;
}

/* `path` is no file. Is it the common prefix of a pair? `why`: the error of opening it */
static hps_status resolve_prefix(const char *path, size_t n, const struct hps_error *why,
                                 struct hps_model_table *table, struct hps_error *err)
{
    bool is = false;

    table->form = HPS_ROW_FORM_NPY_PAIR;
    table->path = hps_file_path("%.*s.rows.npy", (int)n, path);
    hps_status status = table->path == NULL ? HPS_OK : exists(table->roots, table->path, &is, err);
    if (status == HPS_OK && table->path != NULL && !is) {
        status = hps_error_set(err, why->status, "%s", why->text);
    }
    return status;
}

/* Find the files that `path` means, and the path that opens them. */
static hps_status resolve(const char *path, struct hps_model_table *table, struct hps_error *err)
{
    struct hps_error why = {0};
    struct stat st;
    bool is = false;
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    size_t stem = stem_size(path, ".rows.npy");
    if (stem == 0) {
        stem = stem_size(path, ".keys.npy");
    }
    hps_status status = HPS_OK;
    if (hps_safetensors_is_path(path) && path[n] == '\0') {
        table->form = HPS_ROW_FORM_SAFETENSORS;
        table->path = hps_strdup(path);
    } else if (stem > 0) {
        table->form = HPS_ROW_FORM_NPY_PAIR;
        table->path = hps_file_path("%.*s.rows.npy", (int)stem, path);
    } else if (hps_roots_stat(table->roots, path, &st, &why) != HPS_OK) {
        status = resolve_prefix(path, n, &why, table, err);
    } else if (S_ISDIR(st.st_mode)) {
        table->form = HPS_ROW_FORM_HUGECTR;
        table->path = hps_strndup(path, n);
        status = is_hugectr(table->roots, path, &is, err);
        if (status == HPS_OK && !is) {
            status =
                hps_error_set(err, HPS_INVALID,
                              "%s: a directory without 'key' and 'emb_vector', expected one in "
                              "HugeCTR's form, or a .npy file",
                              path);
        }
    } else {
        table->form = HPS_ROW_FORM_NPY;
        table->path = hps_strdup(path);
    }
    return status == HPS_OK && table->path == NULL ? no_memory(err, path) : status;
}

hps_status hps_model_table_open(const char *name, const char *path, const struct hps_roots *roots,
                                struct hps_model_table *out_table, struct hps_error *err)
{
    struct hps_model_table table = {.roots = roots};

    hps_status status = check_name(name, path, "", err);
    if (status == HPS_OK) {
        status = resolve(path, &table, err);
    }
    if (status == HPS_OK) {
        table.name = hps_strdup(name);
        status = table.name == NULL ? no_memory(err, path) : HPS_OK;
    }
    if (status != HPS_OK) {
        hps_model_table_close(&table);
        return status;
    }
    *out_table = table;
    return HPS_OK;
}

static hps_status add_file(struct hps_fingerprint *print, const struct hps_model_table *table,
                           const char *path, struct hps_error *err)
{
    struct stat st;

    char *file = hps_strndup(path, hps_safetensors_file_size(path));
    if (file == NULL) {
        return no_memory(err, path);
    }
    hps_status status = hps_roots_stat(table->roots, file, &st, err);
    hps_free(file);
    if (status != HPS_OK) {
        return status;
    }
    uint64_t facts[3] = {(uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
                         (uint64_t)st.st_mtim.tv_nsec};
    uint64_t mtime_ms = facts[1] * 1000 + facts[2] / 1000000;
    print->hash = hps_hash_bytes(table->name, strlen(table->name), print->hash);
    print->hash = hps_hash_bytes(path, strlen(path), print->hash);
    print->hash = hps_hash_bytes(facts, sizeof(facts), print->hash);
    print->bytes += facts[0];
    if (print->n_files == 0 || mtime_ms < print->mtime_ms_oldest) {
        print->mtime_ms_oldest = mtime_ms;
    }
    print->n_files++;
    return HPS_OK;
}

/* Add the scales and biases of rows that may be INT8, if they exist. */
static hps_status add_scales(struct hps_fingerprint *print, const struct hps_model_table *table,
                             const char *rows, struct hps_error *err)
{
    char *scales = hps_row_scale_bias_path(rows);
    bool has_scales = false;

    if (scales == NULL) {
        return no_memory(err, table->path);
    }
    hps_status status = exists(table->roots, scales, &has_scales, err);
    if (status == HPS_OK && has_scales) {
        status = add_file(print, table, scales, err);
    }
    hps_free(scales);
    return status;
}

/* Add keys, then rows; a .npy has only rows. */
static hps_status add_files(struct hps_fingerprint *print, const struct hps_model_table *table,
                            struct hps_error *err)
{
    char *keys = NULL;
    char *rows = NULL;
    bool is_single = table->form == HPS_ROW_FORM_NPY || table->form == HPS_ROW_FORM_SAFETENSORS;
    hps_status status = HPS_OK;

    switch (table->form) {
    case HPS_ROW_FORM_HUGECTR:
        keys = hps_file_path("%s/key", table->path);
        rows = hps_file_path("%s/emb_vector", table->path);
        break;
    case HPS_ROW_FORM_NPY_PAIR:
        keys =
            hps_file_path("%.*s.keys.npy", (int)stem_size(table->path, ".rows.npy"), table->path);
        rows = hps_strdup(table->path);
        break;
    default:
        HPS_ASSERT(is_single);
        rows = hps_strdup(table->path);
        break;
    }
    if (rows == NULL || (keys == NULL && !is_single)) {
        status = no_memory(err, table->path);
    }
    if (status == HPS_OK && keys != NULL) {
        status = add_file(print, table, keys, err);
    }
    if (status == HPS_OK) {
        status = add_file(print, table, rows, err);
    }
    if (status == HPS_OK && table->form != HPS_ROW_FORM_HUGECTR &&
        table->form != HPS_ROW_FORM_SAFETENSORS) {
        status = add_scales(print, table, rows, err);
    }
    hps_free(keys);
    hps_free(rows);
    return status;
}

hps_status hps_model_fingerprint(const struct hps_model_table *tables, size_t n_tables,
                                 struct hps_fingerprint *out_print, struct hps_error *err)
{
    struct hps_fingerprint print = {0};

    for (size_t i = 0; i < n_tables; i++) {
        hps_status status = add_files(&print, &tables[i], err);
        if (status != HPS_OK) {
            return status;
        }
    }
    int n = snprintf(print.text, sizeof(print.text), "%016" PRIx64, print.hash);
    HPS_ASSERT(n == 16);
    *out_print = print;
    return HPS_OK;
}
