/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions in a configuration file. Simple rather than fast: it runs only for messages. Main
 * thread.
 */
#include "config/text.h"

#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "config/json.h"
#include "config/secrets.h"

enum { NAME_BYTES = 256 };

static size_t skip_string(const char *text, size_t size, size_t at)
{
    for (at++; at < size && text[at] != '"' && text[at] != '\n'; at++) {
        if (text[at] == '\\') {
            at++;
        }
    }
    return at < size ? at + 1 : size;
}

/* Replace the comment at `at` by blanks. Returns its end, or 0 if it is not closed. */
static size_t blank_comment(char *text, size_t size, size_t at)
{
    bool block = text[at + 1] == '*';
    size_t end = at + 2;
    while (end < size && !(block ? text[end] == '/' && text[end - 1] == '*' && end > at + 2
                                 : text[end] == '\n')) {
        end++;
    }
    if (block && end == size) {
        return 0;
    }
    end += block ? 1 : 0;
    for (size_t i = at; i < end; i++) {
        if (text[i] != '\n') {
            text[i] = ' ';
        }
    }
    return end;
}

hps_status hps_text_init(struct hps_text *source, const char *file, const char *text, size_t size,
                         struct hps_error *err)
{
    char *copy = hps_alloc(size + 1);
    if (copy == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: out of memory", file);
    }
    if (size > 0) {
        memcpy(copy, text, size);
    }
    copy[size] = '\0';
    *source = (struct hps_text){.file = file, .text = copy, .size = size};
    size_t at = size >= 3 && memcmp(copy, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    if (at == 3) {
        memset(copy, ' ', 3); /* byte order mark */
    }
    while (at < size) {
        if (copy[at] == '"') {
            at = skip_string(copy, size, at);
        } else if (copy[at] == '/' && at + 1 < size &&
                   (copy[at + 1] == '/' || copy[at + 1] == '*')) {
            size_t end = blank_comment(copy, size, at);
            if (end == 0) {
                unsigned line = hps_text_line(source, at);
                hps_text_fini(source);
                return hps_error_set(err, HPS_INVALID,
                                     "%s:%u: the comment that begins here is not closed", file,
                                     line);
            }
            at = end;
        } else {
            at++;
        }
    }
    return HPS_OK;
}

void hps_text_fini(struct hps_text *source)
{
    hps_free(source->text);
    *source = (struct hps_text){0};
}

unsigned hps_text_line(const struct hps_text *source, size_t offset)
{
    unsigned line = 1;
    for (size_t i = 0; i < offset && i < source->size; i++) {
        line += source->text[i] == '\n' ? 1 : 0;
    }
    return line;
}

static size_t skip_blank(const struct hps_text *source, size_t at)
{
    while (at < source->size && strchr(" \t\r\n", source->text[at]) != NULL) {
        at++;
    }
    return at;
}

/* The end of the value that begins at `at`. */
static size_t skip_value(const struct hps_text *source, size_t at)
{
    size_t depth = 0;
    while (at < source->size) {
        char c = source->text[at];
        if (c == '"') {
            at = skip_string(source->text, source->size, at);
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
            continue;
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return at;
            }
            depth--;
            at++;
        } else if (depth == 0) {
            while (at < source->size && strchr(",]} \t\r\n", source->text[at]) == NULL) {
                at++;
            }
            return at;
        } else {
            at++;
            continue;
        }
        if (depth == 0) {
            return at;
        }
    }
    return source->size;
}

/* The next element, key or closing bracket after a value that ends at `at`. */
static size_t skip_comma(const struct hps_text *source, size_t at)
{
    at = skip_blank(source, at);
    return at < source->size && source->text[at] == ',' ? skip_blank(source, at + 1) : at;
}

/* Decode the quoted string at begin .. end. owner: the caller, json_decref; NULL: no memory */
static json_t *decode_key(const struct hps_text *source, size_t begin, size_t end)
{
    return json_loadb(source->text + begin, end - begin, JSON_DECODE_ANY, NULL);
}

/* Whether the quoted string at begin .. end, which may have escapes, is `key`. */
static bool is_key(const struct hps_text *source, size_t begin, size_t end, const char *key)
{
    const char *text = source->text + begin + 1;
    if (memchr(text, '\\', end - begin - 1) == NULL) {
        return end - begin == strlen(key) + 2 && memcmp(text, key, end - begin - 2) == 0;
    }
    json_t *decoded = decode_key(source, begin, end);
    bool same = decoded != NULL && strcmp(json_string_value(decoded), key) == 0;
    json_decref(decoded);
    return same;
}

/* Find the value of `step` in the object or array at `at`; of a repeated key, the last value. */
static bool find_member(const struct hps_text *source, size_t at, const struct hps_text_path *step,
                        size_t *out_at)
{
    char open = source->text[at];
    if (open != (step->key != NULL ? '{' : '[')) {
        return false;
    }
    bool any = false;
    at = skip_blank(source, at + 1);
    for (size_t index = 0; at < source->size && source->text[at] != '}' &&
                           source->text[at] != ']' && (step->key != NULL || !any);
         index++) {
        bool found = step->key == NULL && index == step->index;
        if (step->key != NULL) {
            size_t end = skip_string(source->text, source->size, at);
            found = is_key(source, at, end, step->key);
            at = skip_blank(source, skip_blank(source, end) + 1); /* the colon */
        }
        if (found) {
            *out_at = at;
            any = true;
        }
        at = skip_comma(source, skip_value(source, at));
    }
    return any;
}

size_t hps_text_locate(const struct hps_text *source, const struct hps_text_path *path)
{
    if (path == NULL) {
        return skip_blank(source, 0);
    }
    size_t at = hps_text_locate(source, path->parent);
    size_t inner = 0;
    return at < source->size && find_member(source, at, path, &inner) ? inner : at;
}

struct repeats {
    const struct hps_text *source;
    void (*fn)(void *ctx, const struct hps_text_path *path, size_t offset);
    void *ctx;
};

/* Record the key. Reports its second value, but not a third. */
static void note_key(const struct repeats *repeats, json_t *seen, const struct hps_text_path *path,
                     size_t offset)
{
    const json_t *known = json_object_get(seen, path->key);
    if (json_is_false(known)) {
        repeats->fn(repeats->ctx, path, offset);
    }
    (void)json_object_set_new(seen, path->key, known == NULL ? json_false() : json_true());
}

/* Search the value at `at` for repeated keys. Returns its end. */
static size_t find_repeats(const struct repeats *repeats, const struct hps_text_path *path,
                           size_t at)
{
    const struct hps_text *source = repeats->source;
    char open = source->text[at];
    if (open != '{' && open != '[') {
        return skip_value(source, at);
    }
    json_t *seen = open == '{' ? json_object() : NULL;
    at = skip_blank(source, at + 1);
    for (size_t index = 0; at < source->size && source->text[at] != '}' && source->text[at] != ']';
         index++) {
        struct hps_text_path inner = {.parent = path, .index = index};
        json_t *key = NULL;
        if (open == '{') {
            size_t end = skip_string(source->text, source->size, at);
            key = decode_key(source, at, end);
            inner.key = json_string_value(key);
            at = skip_blank(source, skip_blank(source, end) + 1); /* the colon */
            note_key(repeats, seen, &inner, at);
        }
        at = skip_comma(source, find_repeats(repeats, &inner, at));
        json_decref(key);
    }
    json_decref(seen);
    return at + 1;
}

void hps_text_repeats(const struct hps_text *source,
                      void (*fn)(void *ctx, const struct hps_text_path *path, size_t offset),
                      void *ctx)
{
    const struct repeats repeats = {source, fn, ctx};
    (void)find_repeats(&repeats, NULL, skip_blank(source, 0));
}

void hps_text_spelling(const struct hps_text *source, const struct hps_text_path *path,
                       char *out_text, size_t size)
{
    size_t at = hps_text_locate(source, path);
    size_t n = skip_value(source, at) - at;
    bool cut = n >= size;
    n = cut ? size - 1 : n;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)source->text[at + i];
        out_text[i] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
    }
    out_text[n] = '\0';
    if (cut && size > 4) {
        memcpy(out_text + size - 4, "...", 4);
    }
}

void hps_text_got(const struct hps_text *source, const struct hps_text_path *path, char *out_text,
                  size_t size)
{
    char name[NAME_BYTES];
    size_t at = hps_text_locate(source, path);
    char first = source->text[at];
    hps_text_path_print(path, name, sizeof(name));
    if (hps_secrets_is_path(name)) {
        (void)snprintf(out_text, size, "a value that is not shown");
    } else if ((first == '{' || first == '[') && skip_value(source, at) - at > 2) {
        /* may contain secrets */
        (void)snprintf(out_text, size, first == '{' ? "an object" : "a list");
    } else {
        hps_text_spelling(source, path, out_text, size);
    }
}

/* Append to a text that is cut if full. */
static void append(char *text, size_t size, const char *more, size_t n)
{
    size_t used = strlen(text);
    if (used + n >= size) {
        n = size - 1 - used;
    }
    memcpy(text + used, more, n);
    text[used + n] = '\0';
}

void hps_text_path_print(const struct hps_text_path *path, char *out_text, size_t size)
{
    if (path == NULL) {
        out_text[0] = '\0';
        return;
    }
    hps_text_path_print(path->parent, out_text, size);
    if (path->key == NULL) {
        char index[32];
        int n = snprintf(index, sizeof(index), "[%zu]", path->index);
        append(out_text, size, index, (size_t)n);
        return;
    }
    if (out_text[0] != '\0') {
        append(out_text, size, ".", 1);
    }
    append(out_text, size, path->key, strlen(path->key));
}

enum { DEPTH_MAX = 8 };

/* The values that enclose the byte: the last key, or index of the element, per level. */
struct level {
    bool object;
    size_t key;
    size_t key_size;
    size_t index;
};

static void print_levels(const struct hps_text *source, const struct level *levels, size_t n,
                         char *out_text, size_t size)
{
    out_text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (!levels[i].object) {
            char index[32];
            int length = snprintf(index, sizeof(index), "[%zu]", levels[i].index);
            append(out_text, size, index, (size_t)length);
        } else if (levels[i].key_size > 0) {
            append(out_text, size, ".", out_text[0] == '\0' ? 0 : 1);
            append(out_text, size, source->text + levels[i].key, levels[i].key_size);
        }
    }
}

void hps_text_path_at(const struct hps_text *source, size_t offset, char *out_text, size_t size)
{
    struct level levels[DEPTH_MAX] = {{0}};
    size_t depth = 0;
    bool expect_key = false;
    offset = offset < source->size ? offset : source->size;
    for (size_t at = 0; at < offset;) {
        char c = source->text[at];
        struct level *level = depth > 0 && depth <= DEPTH_MAX ? &levels[depth - 1] : NULL;
        if (c == '"') {
            size_t end = skip_string(source->text, offset, at);
            if (level != NULL && level->object && expect_key) {
                level->key = at + 1;
                level->key_size = end - at < 2 ? 0 : end - at - 2;
                expect_key = false;
            }
            at = end;
            continue;
        }
        if (c == '{' || c == '[') {
            if (depth < DEPTH_MAX) {
                levels[depth] = (struct level){.object = c == '{'};
            }
            depth++;
            expect_key = c == '{';
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && level != NULL) {
            level->index++;
            expect_key = level->object;
        }
        at++;
    }
    print_levels(source, levels, depth < DEPTH_MAX ? depth : DEPTH_MAX, out_text, size);
}
