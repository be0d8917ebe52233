/* SPDX-License-Identifier: Apache-2.0
 *
 * Locates the values of tensors in the JSON of a request. See server/kserve/json_scan.h.
 */
#include "server/kserve/json_scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"

enum { VALUES_MAX = 128 * 1024 }; /* of a head, for any number of tables */

/* The kind of a JSON value, by its place. */
enum place { PLACE_OTHER, PLACE_ROOT, PLACE_INPUTS, PLACE_OUTPUTS, PLACE_INPUT };

struct level {
    enum place place;
    bool object;
    bool key_next;          /* object: a string is a key */
    struct kserve_text key; /* the last key, as written, without quotes */
    uint64_t n_values;      /* values that have begun */
};

struct scan {
    const char *at;
    const char *end;
    const char *from; /* text from here to `at` belongs to the head and is not copied yet */
    const struct hps_decode_limits *limits;
    struct kserve_json *out;
    struct hps_error *err;
    struct level levels[KSERVE_JSON_DEPTH_MAX];
    unsigned depth; /* open levels */
    bool closed;    /* the outermost object or array has ended */
    uint64_t n_values;
    uint64_t values_max;
};

/* Limit on the values of a head: a constant, and more than enough for each tensor. */
static uint64_t values_max(const struct hps_decode_limits *limits)
{
    uint64_t n = 1024 + 24 * kserve_tensors_max(limits);

    return n < VALUES_MAX ? n : VALUES_MAX;
}

/* ---- characters ------------------------------------------------------------------------------ */

static bool is_mark(char c)
{
    return c != '\0' && strchr("{}[]:,\"", c) != NULL;
}

/* Whether a key, as written, is this name, which has only ASCII letters. Letters may be escaped
 * (\u0061). */
static bool key_is(struct kserve_text key, const char *name)
{
    size_t i = 0;

    for (; *name != '\0' && i < key.size; name++) {
        int c = (unsigned char)key.at[i++];
        if (c == '\\' && key.size - i >= 5 && key.at[i] == 'u') {
            c = 0;
            for (unsigned k = 1; k <= 4; k++) {
                int digit = hps_text_hex(key.at[i + k]);
                c = digit < 0 || c < 0 ? -1 : c * 16 + digit;
            }
            i += 5;
        }
        if (c != *name) {
            return false;
        }
    }
    return *name == '\0' && i == key.size;
}

/* ---- the head -------------------------------------------------------------------------------- */

static hps_status put(struct scan *scan, const char *text, size_t size)
{
    hps_status status = hps_buf_append(&scan->out->head, text, size);

    if (status == HPS_EXHAUSTED) {
        return hps_error_set(
            scan->err, HPS_INVALID,
            "the JSON of the request: more than %d bytes without the values of tensors",
            KSERVE_JSON_HEAD_BYTES_MAX);
    }
    if (status != HPS_OK) {
        return hps_error_set(scan->err, status, "no memory for the JSON of the request");
    }
    return HPS_OK;
}

/* Copies the text before `at` that is not copied yet to the head. */
static hps_status put_rest(struct scan *scan)
{
    const char *from = scan->from;

    scan->from = scan->at;
    return put(scan, from, (size_t)(scan->at - from));
}

static hps_status not_closed(const struct scan *scan, const char *what)
{
    return hps_error_set(scan->err, HPS_INVALID, "the JSON of the request: %s that is not closed",
                         what);
}

/* The end of the string that begins at `at`; NULL: it is not closed. */
static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '"') {
            return at + 1;
        }
        if (*at == '\\' && ++at == end) {
            return NULL;
        }
    }
    return NULL;
}

/* The end of the array that begins at `at`; NULL: it is not closed. */
static const char *array_end(const char *at, const char *end)
{
    uint64_t depth = 0;

    while (at < end) {
        if (*at == '"') {
            at = string_end(at, end);
            if (at == NULL) {
                return NULL;
            }
            continue;
        }
        depth += *at == '[' ? 1 : 0;
        depth -= *at == ']' ? 1 : 0;
        at++;
        if (depth == 0) {
            return at;
        }
    }
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

static struct level *level_of(struct scan *scan)
{
    return scan->depth == 0 ? NULL : &scan->levels[scan->depth - 1];
}

static hps_status too_many(const struct scan *scan, const char *what, uint64_t limit)
{
    return hps_error_set(scan->err, HPS_INVALID,
                         "the JSON of the request: more than %" PRIu64 " %s", limit, what);
}

/* Counts a value that begins. */
static hps_status count_value(struct scan *scan)
{
    struct level *level = level_of(scan);
    uint64_t tensors_max = kserve_tensors_max(scan->limits);

    if (++scan->n_values > scan->values_max) {
        return too_many(scan, "values outside of tensors", scan->values_max);
    }
    if (level == NULL) {
        return HPS_OK;
    }
    level->n_values++;
    if (level->place == PLACE_INPUTS && level->n_values > tensors_max) {
        return too_many(scan, "inputs", tensors_max);
    }
    if (level->place == PLACE_OUTPUTS && level->n_values > tensors_max) {
        return too_many(scan, "outputs", tensors_max);
    }
    return HPS_OK;
}

/* The kind of an object or array that begins. */
static enum place place_of(struct scan *scan, bool object)
{
    const struct level *level = level_of(scan);

    if (level == NULL) {
        return object ? PLACE_ROOT : PLACE_OTHER;
    }
    if (level->place == PLACE_ROOT && !object) {
        return key_is(level->key, "inputs")    ? PLACE_INPUTS
               : key_is(level->key, "outputs") ? PLACE_OUTPUTS
                                               : PLACE_OTHER;
    }
    return level->place == PLACE_INPUTS && object ? PLACE_INPUT : PLACE_OTHER;
}

static hps_status open_level(struct scan *scan, bool object)
{
    if (scan->depth == KSERVE_JSON_DEPTH_MAX) {
        return hps_error_set(scan->err, HPS_INVALID,
                             "the JSON of the request: nested more than %d deep",
                             KSERVE_JSON_DEPTH_MAX);
    }
    enum place place = place_of(scan, object);
    scan->levels[scan->depth++] =
        (struct level){.place = place, .object = object, .key_next = object};
    scan->at++;
    return HPS_OK;
}

static hps_status close_level(struct scan *scan, bool object)
{
    const struct level *level = level_of(scan);

    if (level == NULL || level->object != object) {
        return hps_error_set(scan->err, HPS_INVALID, "the JSON of the request: '%c' closes nothing",
                             *scan->at);
    }
    scan->depth--;
    scan->closed = scan->depth == 0;
    scan->at++;
    return HPS_OK;
}

/* Notes the values of a tensor, which begin here, and skips them. */
static hps_status take_data(struct scan *scan)
{
    HPS_ASSERT(scan->depth > 1 && scan->levels[scan->depth - 2].n_values > 0);
    const char *end = array_end(scan->at, scan->end);
    if (end == NULL) {
        return not_closed(scan, "\"data\"");
    }
    const struct kserve_json_data data = {.input = scan->levels[scan->depth - 2].n_values - 1,
                                          .text = {scan->at, (size_t)(end - scan->at)}};
    hps_status status = hps_buf_append(&scan->out->data, &data, sizeof(data));
    if (status != HPS_OK) {
        return hps_error_set(scan->err, status, "no memory for the JSON of the request");
    }
    status = put_rest(scan);
    scan->at = end;
    scan->from = end;
    return status == HPS_OK ? put(scan, "null", 4) : status;
}

static hps_status take_string(struct scan *scan)
{
    struct level *level = level_of(scan);
    const char *end = string_end(scan->at, scan->end);

    if (end == NULL) {
        return not_closed(scan, "a string");
    }
    if (level != NULL && level->object && level->key_next) {
        level->key = (struct kserve_text){scan->at + 1, (size_t)(end - scan->at) - 2};
    } else {
        hps_status status = count_value(scan);
        if (status != HPS_OK) {
            return status;
        }
    }
    scan->at = end;
    return HPS_OK;
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Handles '[' or '{'. */
static hps_status take_nested(struct scan *scan)
{
    const struct level *level = level_of(scan);
    hps_status status = count_value(scan);

    if (status != HPS_OK) {
        return status;
    }
    if (*scan->at == '[' && level != NULL && level->place == PLACE_INPUT &&
        key_is(level->key, "data")) {
        return take_data(scan);
    }
    return open_level(scan, *scan->at == '{');
}

/* Skips a number, a literal or invalid text, which jansson rejects. */
static hps_status take_word(struct scan *scan)
{
    do {
        scan->at++;
    } while (scan->at < scan->end && !kserve_json_is_space(*scan->at) && !is_mark(*scan->at));
    return count_value(scan);
}

/* Keeps one space, so that the tokens around it stay separate. */
static hps_status take_space(struct scan *scan)
{
    const char *behind = ++scan->at;
    hps_status status = HPS_OK;

    while (behind < scan->end && kserve_json_is_space(*behind)) {
        behind++;
    }
    if (behind > scan->at) {
        status = put_rest(scan);
        scan->at = behind;
        scan->from = behind;
    }
    return status;
}

static hps_status take(struct scan *scan)
{
    struct level *level = level_of(scan);

    if (scan->closed && !kserve_json_is_space(*scan->at)) {
        return hps_error_set(scan->err, HPS_INVALID,
                             "the JSON of the request ends, but %zu bytes follow it; where tensors "
                             "follow, the header Inference-Header-Content-Length is the number of "
                             "bytes of the JSON",
                             (size_t)(scan->end - scan->at));
    }
    switch (*scan->at) {
    case ' ':
    case '\t':
    case '\n':
    case '\r':
        return take_space(scan);
    case '"':
        return take_string(scan);
    case '[':
    case '{':
        return take_nested(scan);
    case ']':
    case '}':
        return close_level(scan, *scan->at == '}');
    case ':':
    case ',':
        if (level != NULL) {
            level->key_next = *scan->at == ',';
        }
        scan->at++;
        return HPS_OK;
    default:
        return take_word(scan);
    }
}

static hps_status scan_text(struct kserve_text text, const struct hps_decode_limits *limits,
                            struct scan *scan, struct kserve_json *out_json, struct hps_error *err)
{
    *scan = (struct scan){.at = text.at,
                          .end = text.at + text.size,
                          .from = text.at,
                          .limits = limits,
                          .out = out_json,
                          .err = err,
                          .values_max = values_max(limits)};
    hps_buf_init(&out_json->head, KSERVE_JSON_HEAD_BYTES_MAX);
    hps_buf_init(&out_json->data, scan->values_max * sizeof(struct kserve_json_data));
    hps_status status = put(scan, " ", 1); /* the head is never empty */
    while (scan->at < scan->end && status == HPS_OK) {
        status = take(scan);
    }
    if (status == HPS_OK) {
        status = put_rest(scan);
    }
    if (status == HPS_OK && scan->depth > 0) {
        status = not_closed(scan, level_of(scan)->object ? "an object" : "an array");
    }
    return status;
}

/* Writes the path of the member at which the scan has stopped. */
static void path_of(const struct scan *scan, char path[KSERVE_JSON_PATH_BYTES])
{
    size_t size = 0;

    path[0] = '\0';
    for (unsigned i = 0; i < scan->depth && size < KSERVE_JSON_PATH_BYTES; i++) {
        const struct level *level = &scan->levels[i];
        int key_size = level->key.size < 32 ? (int)level->key.size : 32;
        int n = 0;
        if (key_size > 0) {
            n = snprintf(path + size, KSERVE_JSON_PATH_BYTES - size, "%s%.*s", i == 0 ? "" : ".",
                         key_size, level->key.at);
        } else if (level->n_values > 0) {
            n = snprintf(path + size, KSERVE_JSON_PATH_BYTES - size, "[%" PRIu64 "]",
                         level->n_values - 1);
        }
        size += (size_t)n;
    }
}

void kserve_json_path(const struct kserve_json *json, size_t position,
                      const struct hps_decode_limits *limits, char path[KSERVE_JSON_PATH_BYTES])
{
    const char *text = (const char *)json->head.data;
    size_t size = position < json->head.size ? position : json->head.size;
    struct kserve_json again;
    struct scan scan;

    /* The scan ends at `position`; its open levels are the path. */
    hps_ignore(scan_text((struct kserve_text){text, size}, limits, &scan, &again, NULL));
    path_of(&scan, path);
    kserve_json_fini(&again);
}

hps_status kserve_json_scan(struct kserve_text text, const struct hps_decode_limits *limits,
                            struct kserve_json *out_json, struct hps_error *err)
{
    struct scan scan;
    char path[KSERVE_JSON_PATH_BYTES];
    hps_status status = scan_text(text, limits, &scan, out_json, err);

    if (status == HPS_INVALID) {
        path_of(&scan, path);
        if (path[0] != '\0') {
            status = hps_error_prefix(err, status, "%s", path);
        }
    }
    return status;
}

void kserve_json_fini(struct kserve_json *json)
{
    hps_buf_fini(&json->head);
    hps_buf_fini(&json->data);
}
