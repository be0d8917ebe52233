/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of .npy files, and detection of other formats. A header is six magic bytes, a version, a
 * length, and a Python dict literal, padded with spaces to 64 bytes:
 *
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 */
#include "base/rows/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/rows/scan_internal.h"

static const char magic[] = "\x93NUMPY";

enum { MAGIC_BYTES = 6, PREFIX_BYTES_V1 = 10, PREFIX_BYTES_V2 = 12 };

/* Indexed by type. */
static const struct {
    const char *descr; /* as written */
    uint32_t bytes;
} types[] = {[HPS_NPY_F4] = {"<f4", 4}, [HPS_NPY_F2] = {"<f2", 2},       [HPS_NPY_I8] = {"<i8", 8},
             [HPS_NPY_U8] = {"<u8", 8}, [HPS_NPY_U2] = {"<u2", 2},       [HPS_NPY_U1] = {"|u1", 1},
             [HPS_NPY_I4] = {"<i4", 4}, [HPS_NPY_U4] = {"<u4", 4},       [HPS_NPY_V2] = {"|V2", 2},
             [HPS_NPY_I1] = {"|i1", 1}, [HPS_NPY_BF16] = {"bfloat16", 2}};

enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7 };

uint32_t hps_npy_type_bytes(enum hps_npy_type type)
{
    HPS_ASSERT((unsigned)type < N_TYPES);
    return types[type].bytes;
}

bool hps_npy_is_keys(const struct hps_npy *npy)
{
    return npy->n_dims == 1 && (npy->type == HPS_NPY_I8 || npy->type == HPS_NPY_U8 ||
                                npy->type == HPS_NPY_I4 || npy->type == HPS_NPY_U4);
}

void hps_npy_widen_keys(enum hps_npy_type type, hps_key *keys, size_t n)
{
    const uint8_t *packed = (const uint8_t *)keys;

    for (size_t i = n; types[type].bytes == 4 && i-- > 0;) {
        uint32_t key; /* backwards, so that each key is read before its place is overwritten */
        memcpy(&key, packed + i * sizeof(key), sizeof(key));
        keys[i] = type == HPS_NPY_I4 ? (hps_key)(int64_t)(int32_t)key : key;
    }
}

/* ---- other formats --------------------------------------------------------------------------- */

/* Magic bytes of formats in which tables are often saved. */
static const struct {
    const char *bytes;
    size_t n;
    size_t at;
    const char *name;
} formats[] = {
    {"PK\x03\x04", 4, 0, "a zip archive (torch.save, .npz or .keras)"},
    {"\x89HDF\r\n\x1a\n", 8, 0, "HDF5"},
    {"PAR1", 4, 0, "Parquet"},
    {"ARROW1", 6, 0, "Arrow"},
    {"Obj\x01", 4, 0, "Avro"},
    {"GGUF", 4, 0, "GGUF"},
    {"\x1f\x8b", 2, 0, "compressed by gzip"},
    {"\x28\xb5\x2f\xfd", 4, 0, "compressed by zstd"},
    {"ustar", 5, 257, "a tar archive"},
};

static bool is_text(const uint8_t *data, size_t size)
{
    size_t i = 0;
    while (i < size && i < 64 &&
           ((data[i] >= ' ' && data[i] <= '~') || data[i] == '\n' || data[i] == '\r' ||
            data[i] == '\t')) {
        i++;
    }
    return i > 0 && (i == size || i == 64);
}

/* NULL: no known format. */
static const char *format_of(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (size >= formats[i].at + formats[i].n &&
            memcmp(data + formats[i].at, formats[i].bytes, formats[i].n) == 0) {
            return formats[i].name;
        }
    }
    if (size < PREFIX_BYTES_V1) {
        return NULL;
    }
    if (data[0] == 0x80 && data[1] >= 2 && data[1] <= 5) {
        return "a Python pickle (pickle.dump, or torch.save of an early version)";
    }
    /* 8 bytes of length, less than 2^32, then JSON */
    if (data[8] == '{' && memcmp(data + 4, "\0\0\0\0", 4) == 0) {
        return "safetensors";
    }
    /* field 1: a small number; then field 2, 7 or 8 */
    if (data[0] == 0x08 && data[1] < 0x20 &&
        (data[2] == 0x12 || data[2] == 0x3a || data[2] == 0x42)) {
        return "a protobuf message (ONNX, or a TensorFlow SavedModel)";
    }
    return is_text(data, size) ? "text" : NULL;
}

/* ---- the header ------------------------------------------------------------------------------ */

static bool take_word(struct scan *c, const char *word)
{
    size_t n = strlen(word);

    skip_space(c);
    if (c->end - c->at >= n && memcmp(c->text + c->at, word, n) == 0) {
        c->at += n;
        return true;
    }
    return false;
}

/* A quoted string without escapes, shorter than `size`. */
static hps_status take_string(struct scan *c, char *text, size_t size)
{
    skip_space(c);
    if (c->at >= c->end || (c->text[c->at] != '\'' && c->text[c->at] != '"')) {
        return expected(c, "a quoted string");
    }
    uint8_t quote = c->text[c->at];
    size_t begin = c->at + 1;
    size_t end = begin;
    while (end < c->end && c->text[end] != quote && c->text[end] != '\\') {
        end++;
    }
    if (end >= c->end || c->text[end] != quote || end - begin >= size) {
        return expected(c, "a short string in quotes");
    }
    HPS_ASSERT(end - begin < size);
    memcpy(text, c->text + begin, end - begin);
    text[end - begin] = '\0';
    c->at = end + 1;
    return HPS_OK;
}

static hps_status take_shape(struct scan *c, struct hps_npy *npy)
{
    if (!take(c, '(')) {
        return expected(c, "'(' of 'shape'");
    }
    npy->n_dims = 0;
    while (!take(c, ')')) {
        if (npy->n_dims == HPS_NPY_DIMS_MAX) {
            return expected(c, "')': an array of at most 2 dimensions");
        }
        hps_status status = take_number(c, &npy->shape[npy->n_dims]);
        if (status != HPS_OK) {
            return status;
        }
        if (c->at < c->end && c->text[c->at] == 'L') {
            c->at++; /* Python 2 wrote long integers with it */
        }
        npy->n_dims++;
        if (!take(c, ',')) {
            if (!take(c, ')')) {
                return expected(c, "',' or ')' in 'shape'");
            }
            break;
        }
    }
    if (npy->n_dims == 0) {
        return expected(c, "a 'shape' of 1 or 2 dimensions before here");
    }
    return HPS_OK;
}

static hps_status take_descr(struct scan *c, struct hps_npy *npy)
{
    char text[16];

    skip_space(c);
    size_t begin = c->at;
    hps_status status = take_string(c, text, sizeof(text));
    if (status != HPS_OK) {
        return status;
    }
    if (text[0] == '>') {
        return hps_error_set(c->err, HPS_INVALID,
                             "npy header, byte %zu: dtype '%s' is big-endian, expected '<'", begin,
                             text);
    }
    /* NumPy writes '|' for types without a byte order, and accepts any sign. */
    bool has_order = strlen(text) == 3 && (text[0] == '<' || text[0] == '=');
    for (unsigned i = 0; i < N_TYPES; i++) {
        if (strcmp(text, types[i].descr) == 0 ||
            (has_order && strcmp(text + 1, types[i].descr + 1) == 0)) {
            npy->type = (enum hps_npy_type)i;
            return HPS_OK;
        }
    }
    return hps_error_set(c->err, HPS_INVALID,
                         "npy header, byte %zu: dtype '%s', expected '<f4', '<f2', '|u1', '<u2' or "
                         "'<V2' (both bf16) for rows, '<i8', '<u8', '<i4' or '<u4' for keys",
                         begin, text);
}

static hps_status take_order(struct scan *c)
{
    if (take_word(c, "False")) {
        return HPS_OK;
    }
    if (take_word(c, "True")) {
        return hps_error_set(c->err, HPS_INVALID,
                             "npy header, byte %zu: fortran_order is True, expected False (rows in "
                             "C order; save np.ascontiguousarray(a))",
                             c->at - 4);
    }
    return expected(c, "True or False");
}

static hps_status take_entry(struct scan *c, struct hps_npy *npy, unsigned *seen)
{
    char name[16];
    unsigned bit;

    hps_status status = take_string(c, name, sizeof(name));
    if (status != HPS_OK) {
        return status;
    }
    if (!take(c, ':')) {
        return expected(c, "':'");
    }
    if (strcmp(name, "descr") == 0) {
        bit = SEEN_DESCR;
        status = take_descr(c, npy);
    } else if (strcmp(name, "fortran_order") == 0) {
        bit = SEEN_ORDER;
        status = take_order(c);
    } else if (strcmp(name, "shape") == 0) {
        bit = SEEN_SHAPE;
        status = take_shape(c, npy);
    } else {
        return expected(c, "'descr', 'fortran_order' or 'shape' before here");
    }
    if (status == HPS_OK && (*seen & bit) != 0) {
        return expected(c, "each of 'descr', 'fortran_order' and 'shape' only once before here");
    }
    *seen |= bit;
    return status;
}

static hps_status parse_dict(struct scan *c, struct hps_npy *npy)
{
    unsigned seen = 0;

    if (!take(c, '{')) {
        return expected(c, "'{'");
    }
    while (!take(c, '}')) {
        hps_status status = take_entry(c, npy, &seen);
        if (status != HPS_OK) {
            return status;
        }
        if (!take(c, ',')) {
            if (!take(c, '}')) {
                return expected(c, "',' or '}'");
            }
            break;
        }
    }
    if (seen != SEEN_ALL) {
        return expected(c, "'descr', 'fortran_order' and 'shape' before here");
    }
    skip_space(c);
    return c->at == c->end ? HPS_OK : expected(c, "spaces up to the end of the header");
}

/* Find the begin and end of the dict. */
static hps_status parse_prefix(struct scan *c, size_t size)
{
    if (size < PREFIX_BYTES_V1 || memcmp(c->text, magic, MAGIC_BYTES) != 0) {
        const char *format = format_of(c->text, size);
        if (format != NULL) {
            return hps_error_set(c->err, HPS_INVALID,
                                 "the file is %s, expected .npy; save each table with numpy.save, "
                                 "or as a HugeCTR directory",
                                 format);
        }
        return expected(c, "the magic bytes \\x93NUMPY, a version and a length");
    }
    uint8_t major = c->text[6];
    if (major < 1 || major > 3 || c->text[7] != 0) {
        return hps_error_set(c->err, HPS_INVALID,
                             "npy header, byte 6: version %u.%u, expected 1.0, 2.0 or 3.0", major,
                             c->text[7]);
    }
    size_t prefix = major == 1 ? PREFIX_BYTES_V1 : PREFIX_BYTES_V2;
    if (size < prefix) {
        c->at = size;
        return expected(c, "a header length");
    }
    size_t length = (size_t)c->text[8] | (size_t)c->text[9] << 8;
    if (major > 1) {
        length |= (size_t)c->text[10] << 16 | (size_t)c->text[11] << 24;
    }
    if (length > HPS_NPY_HEADER_BYTES_MAX) {
        return hps_error_set(c->err, HPS_INVALID,
                             "npy header, byte 8: length %zu, expected at most %d", length,
                             HPS_NPY_HEADER_BYTES_MAX);
    }
    if (length > size - prefix) {
        return hps_error_set(c->err, HPS_INVALID,
                             "npy header, byte 8: length %zu, but the file ends after %zu bytes",
                             length, size);
    }
    c->at = prefix;
    c->end = prefix + length;
    return HPS_OK;
}

hps_status hps_npy_parse(const uint8_t *data, size_t size, struct hps_npy *out_npy,
                         struct hps_error *err)
{
    struct scan c = {.format = "npy", .text = data, .end = size, .err = err};
    struct hps_npy npy = {0};

    hps_status status = parse_prefix(&c, size);
    if (status == HPS_OK) {
        status = parse_dict(&c, &npy);
    }
    if (status != HPS_OK) {
        return status;
    }
    HPS_ASSERT(c.at == c.end && c.end <= size);
    HPS_ASSERT(npy.n_dims > 0 && npy.n_dims <= HPS_NPY_DIMS_MAX);
    uint64_t bytes = hps_npy_type_bytes(npy.type);
    bool overflow = false;
    for (uint32_t i = 0; i < npy.n_dims; i++) {
        overflow = __builtin_mul_overflow(bytes, npy.shape[i], &bytes) || overflow;
    }
    /* File offsets are signed 64-bit. */
    if (overflow || bytes > (uint64_t)INT64_MAX - c.end) {
        return hps_error_set(err, HPS_INVALID,
                             "npy header: shape (%" PRIu64 ", %" PRIu64 ") overflows a file size",
                             npy.shape[0], npy.shape[1]);
    }
    npy.data_offset = c.end;
    npy.data_bytes = bytes;
    *out_npy = npy;
    return HPS_OK;
}

void hps_npy_format(const struct hps_npy *npy, uint8_t out_header[HPS_NPY_HEADER_BYTES])
{
    char text[HPS_NPY_HEADER_BYTES];
    int n;

    HPS_ASSERT((unsigned)npy->type < N_TYPES);
    HPS_ASSERT(npy->n_dims == 1 || npy->n_dims == 2);
    if (npy->n_dims == 1) {
        n = snprintf(text, sizeof(text),
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ",), }",
                     types[npy->type].descr, npy->shape[0]);
    } else {
        n = snprintf(text, sizeof(text),
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64
                     "), }",
                     types[npy->type].descr, npy->shape[0], npy->shape[1]);
    }
    HPS_ASSERT(n > 0 && n < HPS_NPY_HEADER_BYTES - PREFIX_BYTES_V1);
    memset(out_header, ' ', HPS_NPY_HEADER_BYTES);
    memcpy(out_header, magic, MAGIC_BYTES);
    out_header[6] = 1;
    out_header[7] = 0;
    out_header[8] = HPS_NPY_HEADER_BYTES - PREFIX_BYTES_V1;
    out_header[9] = 0;
    memcpy(out_header + PREFIX_BYTES_V1, text, (size_t)n);
    out_header[HPS_NPY_HEADER_BYTES - 1] = '\n';
}
