/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows and deletes as lines of text. Complete lines are published before more input is awaited, so
 * that a pipe adds no delay. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/args.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/rowfile.h"
#include "tools/hps-publish.h"

enum { LINE_BYTES_MAX = 4 << 20, READ_BYTES = 1 << 16, IDLE_MS = 50 };

static const char blanks[] = " \t,;\r";

struct lines {
    struct publish *publish;
    const struct publish_input *input;
    uint64_t number; /* of the line */
    uint64_t unit;   /* first line of the unit that has no `commit` yet; 0: none */
    float *values;   /* [HPS_ROW_DIM_MAX] */
};

/* The next field of a line, NUL-terminated; NULL: no field is left. Advances *at. */
static char *next_field(char **at)
{
    char *field = *at + strspn(*at, blanks);

    if (*field == '\0') {
        return NULL;
    }
    char *end = field + strcspn(field, blanks);
    *at = *end == '\0' ? end : end + 1;
    *end = '\0';
    return field;
}

/* Parses the values after the key. *out_dim 0: the word null. */
static hps_status parse_values(const struct lines *lines, char *at, uint32_t *out_dim,
                               struct hps_error *err)
{
    HPS_ASSERT(lines->values != NULL && !lines->input->keys_only);
    char *field = next_field(&at);
    uint32_t dim = 0;

    if (field != NULL && strcmp(field, "null") == 0 && next_field(&at) == NULL) {
        *out_dim = 0;
        return HPS_OK;
    }
    if (field == NULL) {
        return hps_error_set(err, HPS_INVALID,
                             "line %" PRIu64
                             ": got a key without values; to delete it write \"null\"",
                             lines->number);
    }
    for (; field != NULL; field = next_field(&at)) {
        char *end;
        if (dim == HPS_ROW_DIM_MAX) {
            return hps_error_set(err, HPS_INVALID, "line %" PRIu64 ": more than %d values",
                                 lines->number, HPS_ROW_DIM_MAX);
        }
        float value = strtof(field, &end);
        if (end == field || *end != '\0' || (!isfinite(value) && !lines->input->nan_allowed)) {
            return hps_error_set(err, HPS_INVALID,
                                 "line %" PRIu64 ", value %u: \"%.40s\" is not a finite number",
                                 lines->number, dim + 1, field);
        }
        lines->values[dim++] = value;
    }
    *out_dim = dim;
    return HPS_OK;
}

static hps_status one_line(struct lines *lines, char *line, struct hps_error *err)
{
    const char *table = lines->input->table;
    char *at = line;
    hps_key key;
    uint32_t dim = 0;

    lines->number++;
    char *field = next_field(&at);
    if (field == NULL || field[0] == '#') {
        return HPS_OK;
    }
    if (lines->input->units && strcmp(field, "commit") == 0 && next_field(&at) == NULL) {
        lines->unit = 0;
        return publish_flush(lines->publish, err);
    }
    lines->unit = lines->unit == 0 ? lines->number : lines->unit;
    if (table == NULL) {
        table = field;
        field = next_field(&at);
    }
    if (field == NULL || !hps_args_key(field, &key)) {
        return hps_error_set(err, HPS_INVALID,
                             "line %" PRIu64 ": key \"%.40s\" is not a 64-bit integer",
                             lines->number, field == NULL ? "" : field);
    }
    if (lines->input->keys_only) {
        if (next_field(&at) != NULL) {
            return hps_error_set(err, HPS_INVALID,
                                 "line %" PRIu64 ": expected only a key to delete", lines->number);
        }
        return publish_deletes(lines->publish, table, &key, 1, err);
    }
    hps_status status = parse_values(lines, at, &dim, err);
    if (status != HPS_OK) {
        return status;
    }
    status = dim == 0 ? publish_deletes(lines->publish, table, &key, 1, err)
                      : publish_rows(lines->publish, table, dim, HPS_DTYPE_FP32, &key,
                                     lines->values, 1, err);
    return status == HPS_INVALID ? hps_error_prefix(err, status, "line %" PRIu64, lines->number)
                                 : status;
}

/* Publishes the complete lines of the buffer; at the end of the input also the incomplete one. */
static hps_status whole_lines(struct lines *lines, struct hps_buf *buf, bool at_end,
                              struct hps_error *err)
{
    HPS_ASSERT(buf->size < buf->capacity || buf->size == 0);
    size_t begin = 0;
    hps_status status = HPS_OK;

    while (status == HPS_OK && begin < buf->size) {
        uint8_t *end = memchr(buf->data + begin, '\n', buf->size - begin);
        if (end == NULL && !at_end) {
            break;
        }
        size_t next = end == NULL ? buf->size : (size_t)(end - buf->data) + 1;
        if (end == NULL) {
            end = buf->data + buf->size; /* space for it was reserved */
        }
        *end = '\0';
        status = one_line(lines, (char *)buf->data + begin, err);
        begin = next;
    }
    hps_buf_consume(buf, begin);
    return status;
}

/* Waits for input, and publishes the gathered rows while idle. */
static hps_status wait_input(struct lines *lines, int fd, struct hps_error *err)
{
    struct pollfd want = {.fd = fd, .events = POLLIN};
    int wait_ms = 0;

    while (poll(&want, 1, wait_ms) <= 0) {
        hps_status status = publish_idle(lines->publish, err);
        if (status != HPS_OK) {
            return status;
        }
        wait_ms = IDLE_MS;
    }
    return HPS_OK;
}

hps_status publish_lines(struct publish *publish, const struct publish_input *input, int fd,
                         struct hps_error *err)
{
    HPS_ASSERT(fd >= 0);
    struct lines lines = {.publish = publish, .input = input};
    struct hps_buf buf;
    bool at_end = false;
    hps_status status = HPS_OK;

    hps_buf_init(&buf, LINE_BYTES_MAX);
    lines.values = hps_alloc(HPS_ROW_DIM_MAX * sizeof(*lines.values));
    if (lines.values == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    while (status == HPS_OK && !at_end) {
        status = hps_buf_reserve(&buf, READ_BYTES + 1);
        if (status != HPS_OK) {
            hps_error_set(err, HPS_INVALID, "line %" PRIu64 " has more than %d bytes",
                          lines.number + 1, LINE_BYTES_MAX - READ_BYTES);
            status = HPS_INVALID;
            break;
        }
        status = wait_input(&lines, fd, err);
        if (status != HPS_OK) {
            break;
        }
        ssize_t n = read(fd, buf.data + buf.size, READ_BYTES);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            status = hps_file_error(err, errno, "read", "input");
        }
        at_end = n == 0;
        buf.size += n > 0 ? (size_t)n : 0;
        if (status == HPS_OK) {
            status = whole_lines(&lines, &buf, at_end, err);
        }
    }
    hps_free(lines.values);
    hps_buf_fini(&buf);
    if (status == HPS_OK && input->units && !input->keys_only && lines.unit > 0) {
        return hps_error_set(err, HPS_INVALID,
                             "line %" PRIu64 ": the input ended before the \"commit\" of the unit "
                             "that begins here; the unit was not published",
                             lines.unit);
    }
    return status == HPS_OK ? publish_flush(publish, err) : status;
}
