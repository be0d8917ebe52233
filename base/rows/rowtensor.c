/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the tensors of one table in a safetensors file. See base/rows/rowfile.h.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/rowfile_internal.h"

/* The only table in the file; companions of a table are no tables. */
static hps_status only_table(const struct hps_safetensors *set, const char *path,
                             const struct hps_tensor **out_tensor, struct hps_error *err)
{
    const struct hps_tensor *found[2] = {NULL, NULL};
    size_t n = 0;

    for (size_t i = 0; i < set->n_tensors; i++) {
        if (hps_tensor_is_table(&set->tensors[i]) &&
            !hps_safetensors_is_companion(set, &set->tensors[i])) {
            found[n < 2 ? n : 1] = &set->tensors[i];
            n++;
        }
    }
    if (n == 1) {
        *out_tensor = found[0];
        return HPS_OK;
    }
    if (n == 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: no tensor of 2 dimensions of F32, F16, BF16, U8 or I8 among its "
                             "%zu tensors",
                             path, set->n_tensors);
    }
    return hps_error_set(err, HPS_INVALID,
                         "%s: has %zu tables, '%.100s', '%.100s'%s; expected %s:TENSOR", path, n,
                         found[0]->name, found[1]->name, n > 2 ? ", ..." : "", path);
}

/* "FILE:<name><tail>"; owner: the caller */
static char *part_path(const char *path, const char *name, size_t name_size, const char *tail)
{
    return hps_file_path("%.*s:%.*s%s", (int)hps_safetensors_file_size(path), path, (int)name_size,
                         name, tail);
}

/* Set the paths of all parts from the path of the table. */
static hps_status name_parts(struct hps_row_reader *reader, const char *path, struct hps_error *err)
{
    const struct hps_tensor *only = NULL;
    size_t n_file = hps_safetensors_file_size(path);
    const char *name = path[n_file] == ':' ? path + n_file + 1 : NULL;
    const char *scale = name != NULL ? strchr(name, ':') : NULL;
    const char *bias = scale != NULL ? strchr(scale + 1, ':') : NULL;

    if (name != NULL && (*name == '\0' || (scale != NULL && bias == NULL) ||
                         (bias != NULL && strchr(bias + 1, ':') != NULL))) {
        return hps_error_set(err, HPS_INVALID, "%s: expected FILE:TENSOR or FILE:TENSOR:SCALE:BIAS",
                             path);
    }
    if (name == NULL) {
        hps_status status = only_table(&reader->set, path, &only, err);
        if (status != HPS_OK) {
            return status;
        }
        name = only->name;
    }
    size_t n = scale != NULL ? (size_t)(scale - name) : strlen(name);
    reader->rows.path = part_path(path, name, n, "");
    reader->keys.path = part_path(path, name, n, ".keys");
    reader->scales.path = scale != NULL ? part_path(path, scale + 1, (size_t)(bias - scale - 1), "")
                                        : part_path(path, name, n, ".scale");
    reader->biases.path = bias != NULL ? part_path(path, bias + 1, strlen(bias + 1), "")
                                       : part_path(path, name, n, ".bias");
    if (reader->rows.path == NULL || reader->keys.path == NULL || reader->scales.path == NULL ||
        reader->biases.path == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to open it", path);
    }
    if (hps_safetensors_find(&reader->set, reader->keys.path + n_file + 1) == NULL) {
        hps_free(reader->keys.path);
        reader->keys.path = NULL;
    }
    return HPS_OK;
}

hps_status rowtensor_begin(struct hps_row_reader *reader, const char *path,
                           const struct hps_roots *roots, struct hps_error *err)
{
    uint64_t bytes = 0;

    char *file = hps_strndup(path, hps_safetensors_file_size(path));
    if (file == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to open it", path);
    }
    hps_status status = hps_roots_open_read(roots, file, &reader->rows.fd, &bytes, err);
    if (status == HPS_OK) {
        status = hps_safetensors_read(reader->rows.fd, file, bytes, &reader->set, err);
    }
    if (status == HPS_OK) {
        status = name_parts(reader, path, err);
    }
    hps_free(file);
    return status;
}

hps_status rowtensor_open(struct hps_row_reader *reader, struct rowfile_part *part,
                          struct hps_npy *out_npy, struct hps_error *err)
{
    const char *name = part->path + hps_safetensors_file_size(part->path) + 1;
    const struct hps_tensor *tensor = hps_safetensors_find(&reader->set, name);

    if (tensor == NULL) {
        return hps_error_set(err, HPS_INVALID, "%s: the file has no tensor '%s'", part->path, name);
    }
    if (!tensor->readable) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: a tensor of %s or of more than 2 dimensions, expected %s",
                             part->path, tensor->dtype,
                             part == &reader->keys ? "keys [rows] of I64, U64, I32 or U32"
                                                   : "[rows, dim] of F32, F16, BF16, U8 or I8");
    }
    if (part != &reader->rows) {
        part->fd = fcntl(reader->rows.fd, F_DUPFD_CLOEXEC, 0);
        if (part->fd < 0) {
            return hps_error_set(err, HPS_EXHAUSTED, "%s: no file descriptor", part->path);
        }
    }
    part->offset = tensor->array.data_offset;
    *out_npy = tensor->array;
    return HPS_OK;
}
