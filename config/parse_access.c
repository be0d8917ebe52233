/* SPDX-License-Identifier: Apache-2.0
 *
 * The role file. See config/access.h. Main thread.
 */
#include "config/access.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/suggest.h"
#include "config/parse_internal.h"

enum { FILE_BYTES_MAX = 4 << 20, ITEMS_MAX = 4096, NAME_CHARS_MAX = 256, TOKEN_CHARS_MAX = 64 };

static const char *const role_words[] = {"lookup", "read", "load", "admin"};
enum { N_ROLES = sizeof(role_words) / sizeof(role_words[0]) };

#define WHO_EXPECTED                                                                              \
    "\"cert:NAME\", \"user:NAME\", \"group:NAME\", \"token:NAME\" (each of 1 to 255 characters) " \
    "or "                                                                                         \
    "\"any\""

/* The input and the result. */
struct access_reader {
    struct parse_reader base;
    struct hps_access_file *file;
    json_t *names;   /* the names of the tokens */
    json_t *digests; /* the name of the token by its digest */
};

/* ---- keys ------------------------------------------------------------------------------------ */

/* Nearest word to `name`; `words` ends with NULL. */
static const char *nearest(const char *const *words, const char *name)
{
    struct hps_suggestion best = {0};
    for (size_t i = 0; words[i] != NULL; i++) {
        hps_suggest(&best, name, words[i]);
    }
    return best.text;
}

/* Check that it is an object with no keys other than these. */
static hps_status check_keys(const struct parse_reader *reader, const struct hps_text_path *path,
                             json_t *object, const char *const *known)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(object)) {
        return parse_fail_item(reader, path, "an object");
    }
    json_object_foreach (object, key, value) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            struct hps_text_path inner = {.parent = path, .key = key};
            const char *meant = nearest(known, key);
            return parse_fail(reader, &inner, HPS_INVALID, "unknown key%s%s%s",
                              meant != NULL ? "; did you mean \"" : "", meant != NULL ? meant : "",
                              meant != NULL ? "\"?" : "");
        }
    }
    return HPS_OK;
}

/* A list in an object, and how to read its entries. */
struct list {
    const char *key;
    bool required;
    size_t n_min;
    size_t item_bytes; /* size of an entry; 0: all entries go into one */
    hps_status (*read)(struct access_reader *reader, const struct hps_text_path *path,
                       json_t *entry, void *item);
};

/* Zeroed memory for the entries of a list, and their number. NULL: no memory, and *out_n is 0. */
static void *list_alloc(const struct list *list, const json_t *object, size_t *out_n)
{
    size_t n = json_array_size(json_object_get(object, list->key));
    void *items = hps_calloc(n + 1, list->item_bytes);

    *out_n = items != NULL ? n : 0;
    return items;
}

static hps_status read_list(struct access_reader *reader, const struct hps_text_path *path,
                            const json_t *object, const struct list *list, void *items)
{
    const json_t *entries = json_object_get(object, list->key);
    size_t n = json_array_size(entries);
    struct hps_text_path at = {.parent = path, .key = list->key};
    hps_status status = items != NULL ? HPS_OK : parse_no_memory(&reader->base);
    if (entries == NULL && list->required) {
        return parse_fail(&reader->base, path, HPS_INVALID, "got no \"%s\", which is required",
                          list->key);
    }
    if (entries != NULL && (!json_is_array(entries) || n < list->n_min || n > ITEMS_MAX)) {
        return parse_fail_item(&reader->base, &at,
                               list->n_min > 0 ? "a list of 1 to 4096 entries"
                                               : "a list of at most 4096 entries");
    }
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        struct hps_text_path inner = {.parent = &at, .index = i};
        status = list->read(reader, &inner, json_array_get(entries, i),
                            (char *)items + i * list->item_bytes);
    }
    return status;
}

/* A whole number from 0 to `max`; bytes also as "64MiB". 0 if it is missing. */
static hps_status get_number(const struct parse_reader *reader, const struct hps_text_path *path,
                             const json_t *object, const char *key, bool bytes, double max,
                             uint64_t *out_value)
{
    struct hps_text_path inner = {.parent = path, .key = key};
    const json_t *value = json_object_get(object, key);
    double number = json_real_value(value);
    *out_value = 0;
    if (value == NULL || (bytes && json_is_string(value) &&
                          hps_bytes_parse(json_string_value(value), out_value) == HPS_OK)) {
        return HPS_OK;
    }
    if (!json_is_real(value) || number < 0 || number > max || number != (double)(uint64_t)number) {
        return parse_fail_item(reader, &inner,
                               bytes ? "bytes, as in 67108864 or \"64MiB\"; 0: no limit"
                                     : "an integer from 0 to 4294967295; 0: no limit");
    }
    *out_value = (uint64_t)number;
    return HPS_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool is_token_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= TOKEN_CHARS_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static bool read_digest(const char *text, uint8_t out_digest[32])
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != 64) {
        return false;
    }
    for (size_t i = 0; i < 64; i++) {
        const char *digit = strchr(digits, tolower((unsigned char)text[i]));
        if (digit == NULL) {
            return false;
        }
        unsigned value = (unsigned)(digit - digits);
        out_digest[i / 2] = (uint8_t)(i % 2 == 0 ? value << 4 : out_digest[i / 2] | value);
    }
    return true;
}

/* Whether text has digits where `form` has 0, and is equal elsewhere. */
static bool is_like(const char *text, const char *form)
{
    size_t i = 0;
    while (form[i] != '\0' &&
           (form[i] == '0' ? isdigit((unsigned char)text[i]) != 0 : text[i] == form[i])) {
        i++;
    }
    return form[i] == '\0' && text[i] == '\0';
}

/* Read "2027-01-31T00:00:00Z", in UTC. False: no such day. */
static bool read_time(const char *text, int64_t *out_unix_s)
{
    struct tm tm = {0};
    struct tm check;
    if (!is_like(text, "0000-00-00T00:00:00Z") ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2dZ", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
               &tm.tm_min, &tm.tm_sec) != 6 ||
        tm.tm_year < 1970) {
        return false;
    }
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    const struct tm asked = tm;
    time_t at = timegm(&tm); /* converts 30 February to a day of March */
    if (gmtime_r(&at, &check) == NULL || check.tm_mon != asked.tm_mon ||
        check.tm_mday != asked.tm_mday || check.tm_hour != asked.tm_hour ||
        check.tm_min != asked.tm_min || check.tm_sec != asked.tm_sec) {
        return false;
    }
    *out_unix_s = (int64_t)at;
    return true;
}

static hps_status check_token_again(const struct access_reader *reader,
                                    const struct hps_text_path *path,
                                    const struct hps_access_token *token)
{
    char digest[65];
    for (size_t i = 0; i < 32; i++) {
        (void)snprintf(digest + 2 * i, 3, "%02x", token->sha256[i]);
    }
    if (json_object_get(reader->names, token->name) != NULL) {
        return parse_fail(&reader->base, path, HPS_INVALID,
                          "got the name \"%s\" a second time, expected different ones",
                          token->name);
    }
    const json_t *other = json_object_get(reader->digests, digest);
    if (other != NULL) {
        return parse_fail(&reader->base, path, HPS_INVALID,
                          "got the digest of token \"%s\" again, expected different ones",
                          json_string_value(other));
    }
    return json_object_set_new(reader->names, token->name, json_true()) == 0 &&
                   json_object_set_new(reader->digests, digest, json_string(token->name)) == 0
               ? HPS_OK
               : parse_no_memory(&reader->base);
}

static hps_status read_token(struct access_reader *reader, const struct hps_text_path *path,
                             json_t *object, void *item)
{
    struct hps_access_token *token = item;
    static const char *const keys[] = {"name", "sha256", "expires", NULL};
    const struct parse_reader *base = &reader->base;
    struct hps_text_path at_name = {.parent = path, .key = "name"};
    struct hps_text_path at_digest = {.parent = path, .key = "sha256"};
    struct hps_text_path at_time = {.parent = path, .key = "expires"};
    hps_status status = check_keys(base, path, object, keys);
    if (status != HPS_OK) {
        return status;
    }
    const json_t *name = json_object_get(object, "name");
    const json_t *digest = json_object_get(object, "sha256");
    const json_t *expires = json_object_get(object, "expires");
    if (name == NULL || digest == NULL) {
        return parse_fail(base, path, HPS_INVALID, "got no \"%s\", which is required",
                          name == NULL ? "name" : "sha256");
    }
    if (!json_is_string(name) || !is_token_name(json_string_value(name))) {
        return parse_fail_item(base, &at_name, "1 to 64 letters, digits, '.', '_' or '-'");
    }
    if (!json_is_string(digest) || !read_digest(json_string_value(digest), token->sha256)) {
        /* Do not repeat the value: it may be the token itself. */
        return parse_fail(base, &at_digest, HPS_INVALID,
                          "expected 64 hexadecimal digits, the SHA-256 of the token");
    }
    token->expires_unix_s = INT64_MAX;
    if (expires != NULL && !(json_is_string(expires) &&
                             read_time(json_string_value(expires), &token->expires_unix_s))) {
        return parse_fail_item(base, &at_time, "a time in UTC, as in \"2027-01-31T00:00:00Z\"");
    }
    token->name = hps_strdup(json_string_value(name));
    return token->name != NULL ? check_token_again(reader, path, token) : parse_no_memory(base);
}

static hps_status read_tokens(struct access_reader *reader, const json_t *root)
{
    static const struct list list = {"tokens", false, 0, sizeof(struct hps_access_token),
                                     read_token};
    struct hps_access_file *file = reader->file;
    file->tokens = list_alloc(&list, root, &file->n_tokens);
    return read_list(reader, NULL, root, &list, file->tokens);
}

/* ---- who ------------------------------------------------------------------------------------- */

/* Read a number, or a name that this host knows. False: neither; errno is 0 if the name is unknown.
 */
static bool find_id(enum hps_access_kind kind, const char *name, uint32_t *out_id)
{
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(name, &end, 10);
    if (isdigit((unsigned char)name[0]) && *end == '\0') {
        *out_id = (uint32_t)number;
        return errno == 0 && number < UINT32_MAX; /* UINT32_MAX means no user */
    }
    errno = 0;
    if (kind == HPS_ACCESS_USER) {
        const struct passwd *user = getpwnam(name);
        *out_id = user != NULL ? user->pw_uid : 0;
        return user != NULL;
    }
    const struct group *group = getgrnam(name);
    *out_id = group != NULL ? group->gr_gid : 0;
    return group != NULL;
}

/* DNS names ignore case; URIs and subjects do not. */
static void lower_dns(char *name)
{
    if (strpbrk(name, ":=") == NULL) {
        for (char *c = name; *c != '\0'; c++) {
            *c = (char)tolower((unsigned char)*c);
        }
    }
}

static hps_status check_token_known(const struct access_reader *reader,
                                    const struct hps_text_path *path, const char *name)
{
    struct hps_suggestion best = {0};
    if (json_object_get(reader->names, name) != NULL) {
        return HPS_OK;
    }
    for (size_t i = 0; i < reader->file->n_tokens; i++) {
        hps_suggest(&best, name, reader->file->tokens[i].name);
    }
    return parse_fail(&reader->base, path, HPS_INVALID,
                      "got the token \"%s\", expected one of \"tokens\"%s%s%s", name,
                      best.text != NULL ? "; did you mean \"" : "",
                      best.text != NULL ? best.text : "", best.text != NULL ? "\"?" : "");
}

static hps_status read_name(struct access_reader *reader, const struct hps_text_path *path,
                            json_t *value, void *item)
{
    struct hps_access_name *who = item;
    static const struct {
        const char *prefix;
        enum hps_access_kind kind;
    } kinds[] = {{"cert:", HPS_ACCESS_CERTIFICATE},
                 {"user:", HPS_ACCESS_USER},
                 {"group:", HPS_ACCESS_GROUP},
                 {"token:", HPS_ACCESS_TOKEN}};
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    const char *name = NULL;
    if (strcmp(text, "any") == 0) {
        who->kind = HPS_ACCESS_ANY;
        return HPS_OK;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t n = strlen(kinds[i].prefix);
        if (strncmp(text, kinds[i].prefix, n) == 0) {
            who->kind = kinds[i].kind;
            name = text + n;
        }
    }
    if (name == NULL || name[0] == '\0' || strlen(name) >= NAME_CHARS_MAX) {
        return parse_fail_item(&reader->base, path, WHO_EXPECTED);
    }
    if (who->kind == HPS_ACCESS_USER || who->kind == HPS_ACCESS_GROUP) {
        return find_id(who->kind, name, &who->id)
                   ? HPS_OK
                   : parse_fail_item(&reader->base, path,
                                     who->kind == HPS_ACCESS_USER
                                         ? "the name or number of a user of this host"
                                         : "the name or number of a group of this host");
    }
    who->name = hps_strdup(name);
    if (who->name == NULL) {
        return parse_no_memory(&reader->base);
    }
    if (who->kind == HPS_ACCESS_CERTIFICATE) {
        lower_dns(who->name);
        return HPS_OK;
    }
    return check_token_known(reader, path, name);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static hps_status read_role(struct access_reader *reader, const struct hps_text_path *path,
                            json_t *value, void *item)
{
    struct hps_access_rule *rule = item;
    const char *word = json_string_value(value);
    for (unsigned role = 0; role < N_ROLES && word != NULL; role++) {
        if (strcmp(role_words[role], word) == 0) {
            rule->may |= 1u << role;
            return HPS_OK;
        }
    }
    return parse_fail_item(&reader->base, path, "\"lookup\", \"read\", \"load\" or \"admin\"");
}

static hps_status read_pattern(struct access_reader *reader, const struct hps_text_path *path,
                               json_t *value, void *item)
{
    struct hps_access_rule *rule = item;
    const char *pattern = json_string_value(value);
    if (pattern == NULL || pattern[0] == '\0' || strlen(pattern) >= NAME_CHARS_MAX) {
        return parse_fail_item(&reader->base, path,
                               "the name of a model, in which * stands for any characters");
    }
    return hps_strings_append(&rule->models, pattern) == HPS_OK ? HPS_OK
                                                                : parse_no_memory(&reader->base);
}

/* reply_bytes limits lookups. */
static hps_status check_quotas(const struct parse_reader *reader, const struct hps_text_path *path,
                               const struct hps_access_rule *rule)
{
    struct hps_text_path inner = {.parent = path, .key = "reply_bytes"};
    return rule->reply_bytes != 0 && (rule->may & HPS_ROLE_LOOKUP) == 0
               ? parse_fail(reader, &inner, HPS_INVALID,
                            "has no effect in a rule without \"lookup\"; add \"lookup\" to "
                            "\"may\", or remove the limit")
               : HPS_OK;
}

static hps_status read_rule(struct access_reader *reader, const struct hps_text_path *path,
                            json_t *object, void *item)
{
    static const char *const keys[] = {"who",         "may", "models", "requests_per_s",
                                       "reply_bytes", NULL};
    static const struct list who = {"who", true, 1, sizeof(struct hps_access_name), read_name};
    static const struct list may = {"may", true, 1, 0, read_role};
    static const struct list models = {"models", false, 1, 0, read_pattern};
    const struct parse_reader *base = &reader->base;
    struct hps_access_rule *rule = item;
    uint64_t requests_per_s = 0;
    hps_status status = check_keys(base, path, object, keys);
    if (status == HPS_OK) {
        rule->who = list_alloc(&who, object, &rule->n_who);
        status = read_list(reader, path, object, &who, rule->who);
    }
    if (status == HPS_OK) {
        status = read_list(reader, path, object, &may, rule);
    }
    if (status == HPS_OK) {
        status = read_list(reader, path, object, &models, rule);
    }
    if (status == HPS_OK) {
        status =
            get_number(base, path, object, "requests_per_s", false, UINT32_MAX, &requests_per_s);
        rule->requests_per_s = (uint32_t)requests_per_s;
    }
    if (status == HPS_OK) {
        status = get_number(base, path, object, "reply_bytes", true, 9007199254740992.0,
                            &rule->reply_bytes);
    }
    return status == HPS_OK ? check_quotas(base, path, rule) : status;
}

static hps_status read_rules(struct access_reader *reader, const json_t *root)
{
    static const struct list list = {"rules", true, 1, sizeof(struct hps_access_rule), read_rule};
    struct hps_access_file *file = reader->file;
    file->rules = list_alloc(&list, root, &file->n_rules);
    return read_list(reader, NULL, root, &list, file->rules);
}

/* ---- the file -------------------------------------------------------------------------------- */

static hps_status read_root(struct access_reader *reader, json_t *root)
{
    static const char *const keys[] = {"rules", "tokens", NULL};
    hps_status status = check_keys(&reader->base, NULL, root, keys);
    if (status == HPS_OK) {
        status = read_tokens(reader, root); /* before the rules, which name tokens */
    }
    return status == HPS_OK ? read_rules(reader, root) : status;
}

hps_status hps_access_file_parse(const char *text, size_t size, const char *file,
                                 struct hps_access_file *out_file, struct hps_error *err)
{
    HPS_ASSERT(file != NULL && out_file != NULL);
    struct hps_access_file fresh = {0};
    struct hps_error first = {0};
    struct access_reader reader = {.base = {.err = &first}, .file = &fresh};
    hps_status status = hps_text_init(&reader.base.source, file, text, size, err);
    if (status != HPS_OK) {
        return status;
    }
    json_t *root = parse_json(&reader.base, 0, &status);
    if (root != NULL) {
        reader.names = json_object();
        reader.digests = json_object();
        status = read_root(&reader, root);
        json_decref(reader.names);
        json_decref(reader.digests);
        json_decref(root);
    }
    hps_text_fini(&reader.base.source);
    if (status == HPS_OK) {
        *out_file = fresh;
    } else {
        hps_access_file_fini(&fresh);
        status = first.status;
        if (err != NULL) {
            *err = first;
        }
    }
    return status;
}

hps_status hps_access_file_read(const char *path, struct hps_access_file *out_file,
                                struct hps_error *err)
{
    char *text = NULL;
    size_t size = 0;
    hps_status status = parse_read_file(path, FILE_BYTES_MAX, &text, &size, err);
    if (status == HPS_OK) {
        status = hps_access_file_parse(text, size, path, out_file, err);
    }
    hps_free(text);
    return status;
}

void hps_access_file_fini(struct hps_access_file *file)
{
    for (size_t i = 0; i < file->n_rules; i++) {
        struct hps_access_rule *rule = &file->rules[i];
        for (size_t k = 0; k < rule->n_who; k++) {
            hps_free(rule->who[k].name);
        }
        hps_free(rule->who);
        hps_strings_fini(&rule->models);
    }
    for (size_t i = 0; i < file->n_tokens; i++) {
        hps_free(file->tokens[i].name);
    }
    hps_free(file->rules);
    hps_free(file->tokens);
    *file = (struct hps_access_file){0};
}
