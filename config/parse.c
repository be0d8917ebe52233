/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON to struct hps_config, by the table of options: the file, its sections, and messages about
 * errors in them. Main thread.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/modeldir.h"
#include "config/parse_internal.h"

enum { FILE_BYTES_MAX = 64 * 1024 * 1024, PATH_CHARS = 192, EXPECTED_CHARS = 256 };

/* ---- messages -------------------------------------------------------------------------------- */

/* "FILE:LINE: PATH: " */
static void where(const struct parse_reader *reader, const struct hps_text_path *path,
                  char *out_text, size_t size)
{
    char name[PATH_CHARS];
    hps_text_path_print(path, name, sizeof(name));
    unsigned line = hps_text_line(&reader->source, hps_text_locate(&reader->source, path));
    (void)snprintf(out_text, size, "%s:%u: %s%s", reader->source.file, line, name,
                   name[0] == '\0' ? "" : ": ");
}

/* Record the error. Returns as parse_fail. */
static hps_status record(const struct parse_reader *reader, const struct hps_error *error)
{
    if (hps_notes_add_error(reader->notes, error, reader->err) != HPS_OK) {
        return parse_no_memory(reader);
    }
    bool full = reader->notes == NULL || reader->notes->n_errors == HPS_NOTES_MAX;
    return full ? HPS_EXHAUSTED : error->status;
}

hps_status HPS_PRINTF(4, 5)
    parse_fail(const struct parse_reader *reader, const struct hps_text_path *path,
               hps_status status, const char *fmt, ...)
{
    HPS_ASSERT(status != HPS_OK);
    char place[PATH_CHARS + 128];
    struct hps_error error;
    char text[sizeof(error.text)];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    where(reader, path, place, sizeof(place));
    (void)hps_error_set(&error, status, "%s%s", place, text);
    return record(reader, &error);
}

hps_status HPS_PRINTF(4, 5)
    parse_note(const struct parse_reader *reader, const struct hps_text_path *path,
               enum hps_note_kind kind, const char *fmt, ...)
{
    char place[PATH_CHARS + 128];
    char text[400];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    where(reader, path, place, sizeof(place));
    hps_status status = hps_notes_add(reader->notes, kind, "%s%s", place, text);
    return status == HPS_OK ? HPS_OK : hps_error_set(reader->err, status, "%sout of memory", place);
}

hps_status parse_no_memory(const struct parse_reader *reader)
{
    return hps_error_set(reader->err, HPS_NO_MEMORY, "%s: out of memory", reader->source.file);
}

static void expected_text(const struct hps_option *option, char *out_text, size_t size)
{
    HPS_ASSERT(size > 0);
    struct hps_buf buf;
    hps_buf_init(&buf, size);
    hps_option_expected(option, &buf);
    bool good = buf.status == HPS_OK;
    (void)snprintf(out_text, size, "%.*s", good ? (int)buf.size : 0,
                   good ? (const char *)buf.data : "");
    hps_buf_fini(&buf);
}

/* Message "got X, expected Y" with a suggestion. */
hps_status parse_fail_value(const struct parse_reader *reader, const struct hps_text_path *path,
                            const struct hps_option *option, const char *word, hps_status status)
{
    HPS_ASSERT(status != HPS_OK);
    if (status == HPS_NO_MEMORY) {
        return parse_no_memory(reader);
    }
    char got[GOT_CHARS];
    char expected[EXPECTED_CHARS];
    hps_text_got(&reader->source, path, got, sizeof(got));
    expected_text(option, expected, sizeof(expected));
    const char *meant = word == NULL ? NULL : hps_option_suggest_word(option, word);
    if (meant != NULL) {
        return parse_fail(reader, path, HPS_INVALID, "got %s, expected %s; did you mean \"%s\"?",
                          got, expected, meant);
    }
    return parse_fail(reader, path, HPS_INVALID, "got %s, expected %s", got, expected);
}

hps_status parse_fail_item(const struct parse_reader *reader, const struct hps_text_path *path,
                           const char *expected)
{
    char got[GOT_CHARS];
    hps_text_got(&reader->source, path, got, sizeof(got));
    return parse_fail(reader, path, HPS_INVALID, "got %s, expected %s", got, expected);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Numbers that a double does not hold exactly are taken from the text of the file. */
const char *parse_scalar_text(const struct parse_reader *reader, const struct hps_text_path *path,
                              const struct hps_option *option, const json_t *value, char *scratch,
                              size_t size)
{
    HPS_ASSERT(size >= GOT_CHARS);
    bool number = option->type == HPS_OPTION_TYPE_U32 || option->type == HPS_OPTION_TYPE_U64 ||
                  option->type == HPS_OPTION_TYPE_BYTES || option->type == HPS_OPTION_TYPE_F64;
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    if (json_is_boolean(value)) {
        return option->type != HPS_OPTION_TYPE_BOOL ? NULL : json_is_true(value) ? "true" : "false";
    }
    if (!json_is_real(value) || !number) {
        return NULL;
    }
    if (option->type != HPS_OPTION_TYPE_F64 && fabs(json_real_value(value)) >= 9007199254740992.0) {
        hps_text_spelling(&reader->source, path, scratch, size);
    } else {
        (void)snprintf(scratch, size, "%.17g", json_real_value(value));
    }
    return scratch;
}

static hps_status read_strings(const struct parse_reader *reader, const struct hps_text_path *path,
                               const struct hps_option *option, const json_t *value, void *base)
{
    HPS_ASSERT(option->type == HPS_OPTION_TYPE_STRINGS);
    hps_status status =
        hps_option_set_text(option, base, "") == HPS_OK ? HPS_OK : parse_no_memory(reader);
    struct hps_strings *field = (struct hps_strings *)(void *)((char *)base + option->offset);
    for (size_t i = 0; i < json_array_size(value) && status == HPS_OK; i++) {
        const json_t *item = json_array_get(value, i);
        struct hps_text_path inner = {.parent = path, .index = i};
        if (!json_is_string(item)) {
            status = parse_go_on(parse_fail_item(reader, &inner, "a string"));
        } else if (hps_strings_append(field, json_string_value(item)) != HPS_OK) {
            status = parse_no_memory(reader);
        }
    }
    return status;
}

static hps_status read_option(const struct parse_reader *reader, const struct hps_text_path *path,
                              const struct hps_option *option, const json_t *value, void *base)
{
    if (option->type == HPS_OPTION_TYPE_STRINGS && json_is_array(value)) {
        return read_strings(reader, path, option, value, base);
    }
    char scratch[GOT_CHARS];
    const char *text = parse_scalar_text(reader, path, option, value, scratch, sizeof(scratch));
    if (text == NULL) {
        return parse_fail_value(reader, path, option, NULL, HPS_INVALID);
    }
    hps_status status = hps_option_set_text(option, base, text);
    return status == HPS_OK ? HPS_OK : parse_fail_value(reader, path, option, text, status);
}

static const char *other_section_of(enum hps_option_section section, const char *name)
{
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        if (hps_options[i].section != section && strcmp(hps_options[i].name, name) == 0) {
            const char *path = hps_section_path(hps_options[i].section);
            return path[0] == '\0' ? "the top level" : path;
        }
    }
    return NULL;
}

/* HPS ignores unknown keys; so in its sections they are only a warning. */
static hps_status unknown_key(const struct parse_reader *reader, const struct hps_text_path *path,
                              enum hps_option_section section)
{
    HPS_ASSERT(path->key != NULL);
    bool ours = section == HPS_SECTION_server || section == HPS_SECTION_tls;
    if (!ours && hps_notes_drop(reader->notes)) {
        return HPS_OK; /* skip the search for the line: a file may have thousands */
    }
    const char *meant = hps_option_suggest(section, path->key);
    const char *other = other_section_of(section, path->key);
    char hint[128] = "";
    if (other != NULL) {
        (void)snprintf(hint, sizeof(hint), "; it belongs to %s", other);
    } else if (meant != NULL) {
        (void)snprintf(hint, sizeof(hint), "; did you mean \"%s\"?", meant);
    }
    if (ours) { /* its value may be secret: not shown */
        return parse_fail(reader, path, HPS_INVALID,
                          "unknown key, expected one of docs/config.md%s", hint);
    }
    return parse_note(reader, path, HPS_NOTE_WARNING, "unknown key, ignored%s", hint);
}

static hps_status no_option(const struct parse_reader *reader, const struct hps_text_path *path,
                            enum hps_option_section section)
{
    const struct hps_option_past *past = hps_option_past_find(section, path->key);
    if (past == NULL) {
        return unknown_key(reader, path, section);
    }
    return past->instead == NULL
               ? HPS_OK /* reported by note_ignored */
               : parse_fail(reader, path, HPS_INVALID, "removed; %s", past->instead);
}

static bool by_hand(const struct hps_option *option)
{
    return option->type == HPS_OPTION_TYPE_OBJECT || option->type == HPS_OPTION_TYPE_TABLES ||
           option->type == HPS_OPTION_TYPE_LISTEN || option->type == HPS_OPTION_TYPE_LISTENS;
}

/* Options without a text form are only marked here; their own functions read them. */
hps_status parse_section(const struct parse_reader *reader, const struct hps_text_path *path,
                         json_t *object, enum hps_option_section section, void *base)
{
    HPS_ASSERT(base != NULL);
    if (!json_is_object(object)) {
        return parse_fail_item(reader, path, "an object");
    }
    const char *key = NULL;
    json_t *value = NULL;
    hps_status status = HPS_OK;
    json_object_foreach (object, key, value) {
        struct hps_text_path inner = {.parent = path, .key = key};
        const struct hps_option *option = hps_option_find(section, key);
        if (option == NULL) {
            status = no_option(reader, &inner, section);
        } else {
            hps_option_mark(base, option);
            status = by_hand(option) ? HPS_OK : read_option(reader, &inner, option, value, base);
        }
        if (parse_go_on(status) != HPS_OK) {
            return status;
        }
    }
    status = HPS_OK;
    for (size_t i = 0; i < HPS_OPTION_COUNT && status == HPS_OK; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section == section && (option->flags & HPS_OPTION_REQUIRED) != 0 &&
            json_object_get(object, option->name) == NULL) {
            status = parse_go_on(parse_fail(reader, path, HPS_INVALID,
                                            "got no \"%s\", which is required", option->name));
        }
    }
    return status;
}

/* ---- server ---------------------------------------------------------------------------------- */

/* Read a string, or {"address": ..., "plaintext": ...}. */
static hps_status read_listener(const struct parse_reader *reader, const struct hps_text_path *path,
                                const json_t *value, const char **out_address, bool *out_plaintext)
{
    const json_t *address = json_is_object(value) ? json_object_get(value, "address") : value;
    const json_t *plaintext = json_is_object(value) ? json_object_get(value, "plaintext") : NULL;
    size_t n_known = json_is_object(value) ? 1 + (size_t)(plaintext != NULL) : 0;
    if (!json_is_string(address) || json_object_size(value) != n_known ||
        (plaintext != NULL && !json_is_boolean(plaintext))) {
        return parse_fail_item(
            reader, path,
            "\"host:port\", \"unix:PATH\" or {\"address\": \"host:port\", \"plaintext\": true}");
    }
    *out_address = json_string_value(address);
    *out_plaintext = json_is_true(plaintext);
    return HPS_OK;
}

static hps_status read_listen_list(const struct parse_reader *reader,
                                   const struct hps_text_path *path, const json_t *value,
                                   bool may_be_none, struct hps_config_listeners *listeners)
{
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (may_be_none && json_is_string(value) && json_string_length(value) == 0) {
        n = 0;
    }
    if (n == 0 && !may_be_none) {
        return parse_fail_item(reader, path, "at least one address");
    }
    hps_config_clear_listeners(listeners);
    for (size_t i = 0; i < n; i++) {
        struct hps_text_path inner = {.parent = path, .index = i};
        const char *address = NULL;
        bool plaintext = false;
        hps_status status =
            json_is_array(value)
                ? read_listener(reader, &inner, json_array_get(value, i), &address, &plaintext)
                : read_listener(reader, path, value, &address, &plaintext);
        if (parse_go_on(status) != HPS_OK) {
            return status;
        }
        if (status == HPS_OK && hps_config_add_listener(listeners, address, plaintext) != HPS_OK) {
            return parse_no_memory(reader);
        }
    }
    return HPS_OK;
}

static hps_status read_one_listener(const struct parse_reader *reader,
                                    const struct hps_text_path *path, const json_t *value,
                                    struct hps_config_listener *listener)
{
    const char *address = NULL;
    bool plaintext = false;
    hps_status status = read_listener(reader, path, value, &address, &plaintext);
    if (status != HPS_OK) {
        return status;
    }
    char *copy = hps_strdup(address);
    if (copy == NULL) {
        return parse_no_memory(reader);
    }
    hps_free(listener->address);
    *listener = (struct hps_config_listener){.address = copy, .plaintext = plaintext};
    return HPS_OK;
}

static hps_status read_server(const struct parse_reader *reader, json_t *root)
{
    json_t *object = json_object_get(root, "server");
    struct hps_config_server *server = &reader->config->server;
    struct hps_text_path path = {.key = "server"};
    if (object == NULL) {
        return HPS_OK;
    }
    hps_status status = parse_section(reader, &path, object, HPS_SECTION_server, server);
    const struct {
        const char *name;
        struct hps_config_listeners *list; /* NULL: a single listener */
        struct hps_config_listener *one;
    } all[] = {{"listen", &server->listen, NULL},
               {"kserve_listen", &server->kserve_listen, NULL},
               {"http_listen", NULL, &server->http_listen},
               {"admin_listen", NULL, &server->admin_listen}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && status == HPS_OK; i++) {
        const json_t *value = json_object_get(object, all[i].name);
        struct hps_text_path inner = {.parent = &path, .key = all[i].name};
        if (value != NULL) {
            status = parse_go_on(all[i].list != NULL
                                     ? read_listen_list(reader, &inner, value, i > 0, all[i].list)
                                     : read_one_listener(reader, &inner, value, all[i].one));
        }
    }
    json_t *tls = json_object_get(object, "tls");
    if (status == HPS_OK && tls != NULL) {
        struct hps_text_path inner = {.parent = &path, .key = "tls"};
        status = parse_section(reader, &inner, tls, HPS_SECTION_tls, &server->tls);
    }
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* HPS disables a store if its block has no `type`. */
static hps_status check_types(const struct parse_reader *reader)
{
    struct hps_config *config = reader->config;
    struct hps_text_path path = {.key = "volatile_db"};
    if (hps_option_is_set(&config->set, HPS_OPTION_top_volatile_db) &&
        !hps_option_is_set(&config->volatile_db.set, HPS_OPTION_volatile_db_type)) {
        config->volatile_db.type = HPS_CONFIG_VOLATILE_DISABLED;
        return parse_note(reader, &path, HPS_NOTE_WARNING,
                          "got no \"type\", so it is disabled, as in HPS");
    }
    return HPS_OK;
}

static hps_status read_blocks(const struct parse_reader *reader, json_t *root)
{
    hps_status status = HPS_OK;
    for (int i = HPS_SECTION_volatile_db; i <= HPS_SECTION_update_source && status == HPS_OK; i++) {
        enum hps_option_section section = (enum hps_option_section)i;
        struct hps_text_path path = {.key = hps_section_path(section)};
        json_t *object = json_object_get(root, path.key);
        if (object != NULL) {
            status = parse_go_on(parse_section(reader, &path, object, section,
                                               hps_section_base(reader->config, section)));
        }
    }
    return status;
}

static bool is_in(json_t *root, unsigned sections, const char *name)
{
    const json_t *models = json_object_get(root, "models");
    bool found = (sections >> HPS_SECTION_top & 1) != 0 && json_object_get(root, name) != NULL;
    for (unsigned i = HPS_SECTION_volatile_db; i <= HPS_SECTION_update_source; i++) {
        const json_t *block = json_object_get(root, hps_section_path((enum hps_option_section)i));
        found = found || ((sections >> i & 1) != 0 && json_object_get(block, name) != NULL);
    }
    for (size_t i = 0; i < json_array_size(models) && !found; i++) {
        found = (sections >> HPS_SECTION_model & 1) != 0 &&
                json_object_get(json_array_get(models, i), name) != NULL;
    }
    return found;
}

/* Add one warning for all keys that are accepted and ignored. */
static hps_status note_ignored(const struct parse_reader *reader, json_t *root)
{
    struct hps_buf names;
    hps_buf_init(&names, HPS_NOTE_BYTES_MAX);
    for (const struct hps_option_past *past = hps_options_past; past->name != NULL; past++) {
        if (past->instead == NULL && is_in(root, past->sections, past->name)) {
            hps_buf_putf(&names, "%s%s", names.size == 0 ? "" : ", ", past->name);
        }
    }
    hps_status status = names.status;
    if (status == HPS_OK && names.size > 0) {
        status = hps_notes_add(reader->notes, HPS_NOTE_IGNORED, "%s: no effect in hpsd: %.*s",
                               reader->source.file, (int)names.size, (const char *)names.data);
    }
    hps_buf_fini(&names);
    return status == HPS_OK ? HPS_OK : parse_no_memory(reader);
}

static hps_status read_root(const struct parse_reader *reader, json_t *root)
{
    struct hps_config *config = reader->config;
    hps_status status = parse_section(reader, NULL, root, HPS_SECTION_top, config);
    if (status == HPS_OK) {
        status = read_blocks(reader, root);
    }
    if (status == HPS_OK) {
        status = check_types(reader);
    }
    if (status == HPS_OK) {
        status = parse_models(reader, root);
    }
    if (status == HPS_OK) {
        status = read_server(reader, root);
    }
    if (status == HPS_OK) {
        status = note_ignored(reader, root);
    }
    config->key_bytes = config->supportlonglong ? 8 : 4;
    return status;
}

static hps_status fail_json(const struct parse_reader *reader, const json_error_t *error)
{
    const struct hps_text *source = &reader->source;
    char path[PATH_CHARS];
    size_t offset = error->position < 0 ? 0 : (size_t)error->position;
    hps_text_path_at(source, offset, path, sizeof(path));
    /* jansson quotes the token at which it stopped, which may be part of a secret. */
    const char *token = strstr(error->text, " near '");
    size_t shown = token != NULL ? (size_t)(token - error->text) : strlen(error->text);
    struct hps_error found;
    (void)hps_error_set(&found, HPS_INVALID, "%s:%u: %s%s%.*s, expected valid JSON", source->file,
                        hps_text_line(source, offset), path, path[0] == '\0' ? "" : ": ",
                        (int)shown, error->text);
    return record(reader, &found);
}

json_t *parse_json(const struct parse_reader *reader, size_t flags, hps_status *out_status)
{
    HPS_ASSERT(reader->source.text != NULL);
    json_error_t error;
    json_t *root = NULL;
    *out_status = hps_json_load(reader->source.text, reader->source.size,
                                JSON_DECODE_INT_AS_REAL | flags, &root, &error);
    if (*out_status == HPS_NO_MEMORY) {
        *out_status = parse_no_memory(reader);
    } else if (*out_status != HPS_OK) {
        *out_status = fail_json(reader, &error);
    }
    return root;
}

static void note_repeat(void *ctx, const struct hps_text_path *path, size_t offset)
{
    const struct parse_reader *reader = ctx;
    const struct hps_text *source = &reader->source;
    char name[PATH_CHARS];
    if (hps_notes_drop(reader->notes)) {
        return; /* skip counting lines: a file may have thousands */
    }
    hps_text_path_print(path, name, sizeof(name));
    if (hps_notes_add(reader->notes, HPS_NOTE_WARNING,
                      "%s:%u: %s: duplicate key; its last value is used", source->file,
                      hps_text_line(source, offset), name) != HPS_OK) {
        hps_ignore(parse_no_memory(reader));
    }
}

hps_status hps_config_parse(const char *text, size_t size, const char *file,
                            struct hps_config **out_config, struct hps_notes *notes,
                            struct hps_error *err)
{
    HPS_ASSERT(file != NULL);
    HPS_ASSERT(out_config != NULL);
    struct hps_error first = {0}; /* set by every failure */
    struct parse_reader reader = {.notes = notes, .err = &first};
    hps_status status = hps_text_init(&reader.source, file, text, size, &first);
    json_t *root = status == HPS_OK ? parse_json(&reader, HPS_JSON_LAST_COUNTS, &status) : NULL;
    if (root != NULL) {
        hps_text_repeats(&reader.source, note_repeat, &reader);
        status = hps_config_new(file, &reader.config, &first);
    }
    if (root != NULL && status == HPS_OK) {
        status = read_root(&reader, root);
    }
    json_decref(root);
    hps_text_fini(&reader.source);
    if (first.status == HPS_OK) {
        HPS_ASSERT(status == HPS_OK);
        *out_config = reader.config;
        return HPS_OK;
    }
    hps_config_free(reader.config);
    if (err != NULL) {
        *err = first;
    }
    return first.status;
}

hps_status parse_read_file(const char *path, size_t bytes_max, char **out_text, size_t *out_size,
                           struct hps_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    hps_status status = hps_file_open_read(path, &fd, &size, err);
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    if (size > bytes_max) {
        status = hps_error_set(err, HPS_INVALID, "%s: got %llu bytes, expected at most %zu", path,
                               (unsigned long long)size, bytes_max);
        goto close_file;
    }
    text = hps_alloc(size + 1);
    if (text == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "%s: out of memory", path);
        goto close_file;
    }
    status = hps_file_pread(fd, path, text, size, 0, err);
    if (status == HPS_OK) {
        *out_text = text;
        *out_size = size;
        text = NULL;
    }
close_file:
    hps_free(text);
    (void)close(fd);
    return status;
}

hps_status hps_config_parse_file(const char *path, struct hps_config **out_config,
                                 struct hps_notes *notes, struct hps_error *err)
{
    char *text = NULL;
    size_t size = 0;
    hps_status status = parse_read_file(path, FILE_BYTES_MAX, &text, &size, err);
    if (status == HPS_OK) {
        status = hps_config_parse(text, size, path, out_config, notes, err);
    }
    hps_free(text);
    return status;
}

hps_status hps_config_parse_entry(const char *text, size_t size, const char *what,
                                  struct hps_config **out_config, struct hps_notes *notes,
                                  struct hps_error *err)
{
    struct hps_buf whole;
    struct hps_config *config = NULL;
    hps_buf_init(&whole, FILE_BYTES_MAX);
    hps_buf_put(&whole, "{\"models\": [");
    hps_buf_put_bytes(&whole, text, size);
    hps_buf_put(&whole, "]}");
    hps_status status =
        whole.status != HPS_OK
            ? hps_error_set(err, whole.status, "%s: no memory for %zu bytes", what, size)
            : hps_config_parse((const char *)whole.data, whole.size, what, &config, notes, err);
    if (status == HPS_OK && config->n_models != 1) {
        status = hps_error_set(err, HPS_INVALID, "%s: got %zu entries of models[], expected one",
                               what, config->n_models);
    }
    hps_buf_fini(&whole);
    if (status != HPS_OK) {
        hps_config_free(config);
        return status;
    }
    *out_config = config;
    return HPS_OK;
}
