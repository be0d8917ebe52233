/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the header of a safetensors file in one pass, without recursion. See
 * base/rows/safetensors.h.
 */
#include "base/rows/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/scan_internal.h"

static const char suffix[] = ".safetensors";

struct parse {
    struct scan scan;    /* of set.head */
    uint64_t data_bytes; /* of all tensors */
    struct hps_safetensors set;
    size_t capacity;
};

/* All types of the format, to check sizes. hpsd reads the types with `known`. */
static const struct {
    const char *name;
    uint32_t bytes;
    bool known;
    enum hps_npy_type type;
} dtypes[] = {
    {"F32", 4, true, HPS_NPY_F4},   {"F16", 2, true, HPS_NPY_F2},  {"BF16", 2, true, HPS_NPY_BF16},
    {"U8", 1, true, HPS_NPY_U1},    {"I8", 1, true, HPS_NPY_I1},   {"I64", 8, true, HPS_NPY_I8},
    {"U64", 8, true, HPS_NPY_U8},   {"I32", 4, true, HPS_NPY_I4},  {"U32", 4, true, HPS_NPY_U4},
    {"F64", 8, false, HPS_NPY_F4},  {"I16", 2, false, HPS_NPY_F4}, {"U16", 2, false, HPS_NPY_F4},
    {"BOOL", 1, false, HPS_NPY_F4},
};

enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

enum { SEEN_DTYPE = 1, SEEN_SHAPE = 2, SEEN_OFFSETS = 4, SEEN_ALL = 7 };

size_t hps_safetensors_file_size(const char *path)
{
    const char *found = strstr(path, ".safetensors:");

    return found != NULL ? (size_t)(found - path) + sizeof(suffix) - 1 : strlen(path);
}

bool hps_safetensors_is_path(const char *path)
{
    size_t n = hps_safetensors_file_size(path);

    return n >= sizeof(suffix) &&
           memcmp(path + n - sizeof(suffix) + 1, suffix, sizeof(suffix) - 1) == 0;
}

/* ---- the scan -------------------------------------------------------------------------------- */

/* A string in quotes. `out_text` (may be NULL) is terminated in place, and may have no escapes. */
static hps_status take_string(struct scan *scan, const char **out_text)
{
    if (!take(scan, '"')) {
        return expected(scan, "a string in quotes");
    }
    size_t begin = scan->at;
    while (scan->at < scan->end && scan->text[scan->at] != '"') {
        if (scan->text[scan->at] < ' ') {
            return expected(scan, "no control character in a string");
        }
        if (scan->text[scan->at] == '\\') {
            if (out_text != NULL) {
                return expected(scan, "a name without escapes");
            }
            scan->at++;
        }
        scan->at++;
    }
    if (scan->at >= scan->end) {
        scan->at = scan->end;
        return expected(scan, "the end of a string");
    }
    if (out_text != NULL) {
        char *text = (char *)scan->text; /* set.head */
        text[scan->at] = '\0';
        *out_text = text + begin;
    }
    scan->at++;
    return HPS_OK;
}

/* An array of at most `max` numbers; stores the first two. */
static hps_status take_numbers(struct scan *scan, size_t max, uint64_t out_numbers[2],
                               uint64_t *out_product, size_t *out_n)
{
    uint64_t product = 1, number = 0;
    size_t n = 0;

    if (!take(scan, '[')) {
        return expected(scan, "'['");
    }
    for (bool ends = take(scan, ']'); !ends;) {
        if (n == max) {
            return expected(scan, max == 2 ? "two numbers" : "at most 64 dimensions");
        }
        hps_status status = take_number(scan, &number);
        if (status != HPS_OK) {
            return status;
        }
        if (n < 2) {
            out_numbers[n] = number;
        }
        n++;
        if (__builtin_mul_overflow(product, number, &product)) {
            product = UINT64_MAX; /* refused later, because no file is that large */
        }
        ends = take(scan, ']');
        if (!ends && !take(scan, ',')) {
            return expected(scan, "',' or ']'");
        }
    }
    *out_product = product;
    *out_n = n;
    return HPS_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static hps_status check_size(const struct scan *scan, struct hps_tensor *tensor, size_t n_dims,
                             uint64_t n_values)
{
    for (unsigned i = 0; i < N_DTYPES; i++) {
        uint64_t bytes = 0;
        if (strcmp(dtypes[i].name, tensor->dtype) != 0) {
            continue;
        }
        if (__builtin_mul_overflow(n_values, dtypes[i].bytes, &bytes) ||
            bytes != tensor->array.data_bytes) {
            return hps_error_set(scan->err, HPS_INVALID,
                                 "tensor '%.200s': %" PRIu64 " bytes of data, expected %" PRIu64
                                 " values of %s",
                                 tensor->name, tensor->array.data_bytes, n_values, tensor->dtype);
        }
        tensor->readable = dtypes[i].known && (n_dims == 1 || n_dims == 2);
        tensor->array.type = dtypes[i].type;
        tensor->array.n_dims = (uint32_t)n_dims;
    }
    return HPS_OK;
}

static hps_status take_offsets(struct scan *scan, uint64_t data_bytes, struct hps_tensor *tensor)
{
    uint64_t offsets[2] = {0}, product;
    size_t n = 0;

    hps_status status = take_numbers(scan, 2, offsets, &product, &n);
    if (status != HPS_OK) {
        return status;
    }
    if (n != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
        return hps_error_set(scan->err, HPS_INVALID,
                             "tensor '%.200s': data end at byte %" PRIu64
                             ", expected at most %" PRIu64
                             " (the file is too short, or its header is wrong)",
                             tensor->name, offsets[1], data_bytes);
    }
    tensor->array.data_offset = offsets[0];
    tensor->array.data_bytes = offsets[1] - offsets[0];
    return HPS_OK;
}

static hps_status take_tensor(struct scan *scan, uint64_t data_bytes, struct hps_tensor *tensor)
{
    uint64_t n_values = 0;
    size_t n_dims = 0;
    unsigned seen = 0;

    if (!take(scan, '{')) {
        return expected(scan, "'{'");
    }
    for (bool ends = false; !ends;) {
        const char *field = NULL;
        unsigned bit = 0;
        hps_status status = take_string(scan, &field);
        if (status == HPS_OK && !take(scan, ':')) {
            status = expected(scan, "':'");
        }
        if (status != HPS_OK) {
            return status;
        }
        if (strcmp(field, "dtype") == 0) {
            bit = SEEN_DTYPE;
            status = take_string(scan, &tensor->dtype);
        } else if (strcmp(field, "shape") == 0) {
            bit = SEEN_SHAPE;
            status = take_numbers(scan, HPS_SAFETENSORS_DIMS_MAX, tensor->array.shape, &n_values,
                                  &n_dims);
        } else if (strcmp(field, "data_offsets") == 0) {
            bit = SEEN_OFFSETS;
            status = take_offsets(scan, data_bytes, tensor);
        }
        if (status != HPS_OK) {
            return status;
        }
        if (bit == 0 || (seen & bit) != 0) {
            return expected(scan, "'dtype', 'shape' and 'data_offsets', each once, before here");
        }
        seen |= bit;
        ends = take(scan, '}');
        if (!ends && !take(scan, ',')) {
            return expected(scan, "',' or '}'");
        }
    }
    return seen == SEEN_ALL ? check_size(scan, tensor, n_dims, n_values)
                            : expected(scan, "'dtype', 'shape' and 'data_offsets' before here");
}

static hps_status take_metadata(struct scan *scan)
{
    if (!take(scan, '{')) {
        return expected(scan, "'{'");
    }
    for (bool ends = take(scan, '}'); !ends;) {
        hps_status status = take_string(scan, NULL);
        if (status == HPS_OK && !take(scan, ':')) {
            status = expected(scan, "':'");
        }
        if (status == HPS_OK) {
            status = take_string(scan, NULL);
        }
        if (status != HPS_OK) {
            return status;
        }
        ends = take(scan, '}');
        if (!ends && !take(scan, ',')) {
            return expected(scan, "',' or '}'");
        }
    }
    return HPS_OK;
}

static hps_status grow(struct parse *parse)
{
    if (parse->set.n_tensors < parse->capacity) {
        return HPS_OK;
    }
    size_t capacity = parse->capacity == 0 ? 64 : 2 * parse->capacity;
    struct hps_tensor *tensors = hps_realloc(parse->set.tensors, capacity * sizeof(*tensors));
    if (tensors == NULL) {
        return hps_error_set(parse->scan.err, HPS_NO_MEMORY, "no memory for %zu tensors", capacity);
    }
    parse->set.tensors = tensors;
    parse->capacity = capacity;
    return HPS_OK;
}

static hps_status take_header(struct parse *parse)
{
    struct scan *scan = &parse->scan;

    if (!take(scan, '{')) {
        return expected(scan, "'{'");
    }
    for (bool ends = take(scan, '}'); !ends;) {
        const char *name = NULL;
        hps_status status = take_string(scan, &name);
        if (status == HPS_OK && !take(scan, ':')) {
            status = expected(scan, "':'");
        }
        if (status == HPS_OK && strcmp(name, "__metadata__") == 0) {
            status = take_metadata(scan);
        } else if (status == HPS_OK && (status = grow(parse)) == HPS_OK) {
            struct hps_tensor *tensor = &parse->set.tensors[parse->set.n_tensors++];
            *tensor = (struct hps_tensor){.name = name};
            status = take_tensor(scan, parse->data_bytes, tensor);
        }
        if (status != HPS_OK) {
            return status;
        }
        ends = take(scan, '}');
        if (!ends && !take(scan, ',')) {
            return expected(scan, "',' or '}'");
        }
    }
    skip_space(scan);
    return scan->at == scan->end ? HPS_OK : expected(scan, "spaces up to the end of the header");
}

/* ---- all tensors ----------------------------------------------------------------------------- */

static int by_data(const void *left, const void *right)
{
    const struct hps_npy *a = &((const struct hps_tensor *)left)->array;
    const struct hps_npy *b = &((const struct hps_tensor *)right)->array;

    if (a->data_offset != b->data_offset) {
        return a->data_offset < b->data_offset ? -1 : 1;
    }
    return a->data_bytes != b->data_bytes ? (a->data_bytes < b->data_bytes ? -1 : 1) : 0;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct hps_tensor *)left)->name,
                  ((const struct hps_tensor *)right)->name);
}

/* Check that the data have no gaps and no overlaps; make offsets count from the start of the file.
 */
static hps_status check_tensors(struct parse *parse)
{
    struct hps_tensor *tensors = parse->set.tensors;
    size_t n = parse->set.n_tensors;
    uint64_t end = 0;

    if (n > 0) {
        qsort(tensors, n, sizeof(*tensors), by_data);
    }
    for (size_t i = 0; i < n; i++) {
        struct hps_npy *array = &tensors[i].array;
        if (array->data_offset != end) {
            return hps_error_set(parse->scan.err, HPS_INVALID,
                                 "tensor '%.200s': data begin at byte %" PRIu64
                                 ", expected %" PRIu64 ", the end of the tensor before it",
                                 tensors[i].name, array->data_offset, end);
        }
        end += array->data_bytes;
        array->data_offset += HPS_SAFETENSORS_PREFIX_BYTES + parse->scan.end;
    }
    if (end != parse->data_bytes) {
        return hps_error_set(parse->scan.err, HPS_INVALID,
                             "%" PRIu64 " bytes of data, expected %" PRIu64 " for its tensors",
                             parse->data_bytes, end);
    }
    if (n > 0) {
        qsort(tensors, n, sizeof(*tensors), by_name);
    }
    for (size_t i = 1; i < n; i++) {
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0) {
            return hps_error_set(parse->scan.err, HPS_INVALID, "tensor '%.200s' twice",
                                 tensors[i].name);
        }
    }
    return HPS_OK;
}

hps_status hps_safetensors_parse(char *head, size_t size, uint64_t file_bytes,
                                 struct hps_safetensors *out_set, struct hps_error *err)
{
    HPS_ASSERT(file_bytes >= HPS_SAFETENSORS_PREFIX_BYTES + size);
    struct parse parse = {.scan = {.format = "safetensors",
                                   .text = (const uint8_t *)head,
                                   .end = size,
                                   .offset = HPS_SAFETENSORS_PREFIX_BYTES,
                                   .err = err},
                          .data_bytes = file_bytes - HPS_SAFETENSORS_PREFIX_BYTES - size,
                          .set = {.head = head}};

    hps_status status = take_header(&parse);
    if (status == HPS_OK) {
        status = check_tensors(&parse);
    }
    if (status != HPS_OK) {
        hps_safetensors_close(&parse.set);
        return status;
    }
    *out_set = parse.set;
    return HPS_OK;
}

hps_status hps_safetensors_read(int fd, const char *path, uint64_t file_bytes,
                                struct hps_safetensors *out_set, struct hps_error *err)
{
    uint64_t size = 0;

    if (file_bytes < HPS_SAFETENSORS_PREFIX_BYTES) {
        return hps_error_set(err, HPS_INVALID, "%s: %" PRIu64 " bytes, expected a safetensors file",
                             path, file_bytes);
    }
    hps_status status = hps_file_pread(fd, path, &size, sizeof(size), 0, err);
    if (status != HPS_OK) {
        return status;
    }
    if (size > HPS_SAFETENSORS_HEADER_BYTES_MAX ||
        size > file_bytes - HPS_SAFETENSORS_PREFIX_BYTES) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: a header of %" PRIu64 " bytes, expected at most %d and a file "
                             "that is longer (it has %" PRIu64 " bytes)",
                             path, size, HPS_SAFETENSORS_HEADER_BYTES_MAX, file_bytes);
    }
    char *head = hps_alloc((size_t)size + 1);
    if (head == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory for its header", path);
    }
    status = hps_file_pread(fd, path, head, (size_t)size, HPS_SAFETENSORS_PREFIX_BYTES, err);
    if (status != HPS_OK) {
        hps_free(head);
        return status;
    }
    status = hps_safetensors_parse(head, (size_t)size, file_bytes, out_set, err);
    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "%s", path);
}

void hps_safetensors_close(struct hps_safetensors *set)
{
    hps_free(set->tensors);
    hps_free(set->head);
    *set = (struct hps_safetensors){0};
}

const struct hps_tensor *hps_safetensors_find(const struct hps_safetensors *set, const char *name)
{
    const struct hps_tensor key = {.name = name};

    return set->n_tensors == 0 ? NULL
                               : bsearch(&key, set->tensors, set->n_tensors, sizeof(key), by_name);
}

bool hps_tensor_is_table(const struct hps_tensor *tensor)
{
    enum hps_npy_type type = tensor->array.type;

    return tensor->readable && tensor->array.n_dims == 2 &&
           (type == HPS_NPY_F4 || type == HPS_NPY_F2 || type == HPS_NPY_BF16 ||
            type == HPS_NPY_U1 || type == HPS_NPY_I1);
}

bool hps_safetensors_is_companion(const struct hps_safetensors *set,
                                  const struct hps_tensor *tensor)
{
    static const char *const tails[] = {".keys", ".scale", ".bias"};
    char name[1024];
    size_t n = strlen(tensor->name);

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        size_t n_tail = strlen(tails[i]);
        if (n <= n_tail || n >= sizeof(name) || strcmp(tensor->name + n - n_tail, tails[i]) != 0) {
            continue;
        }
        memcpy(name, tensor->name, n - n_tail);
        name[n - n_tail] = '\0';
        const struct hps_tensor *of = hps_safetensors_find(set, name);
        bool is_int8 = of != NULL && (of->array.type == HPS_NPY_U1 || of->array.type == HPS_NPY_I1);
        if (of != NULL && hps_tensor_is_table(of) && (i == 0 || is_int8)) {
            return true;
        }
    }
    return false;
}
