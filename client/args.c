/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser of tool command lines. Any thread.
 */
#include "client/args.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"

enum { WORD_BYTES_MAX = 64, WORDS_MAX = 128 };

/* ---- values ---------------------------------------------------------------------------------- */

bool hps_args_u64(const char *text, uint64_t *out_value)
{
    char *end;

    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0') {
        return false;
    }
    *out_value = value;
    return true;
}

bool hps_args_i64(const char *text, int64_t *out_value)
{
    char *end;

    if (!isdigit((unsigned char)text[text[0] == '-'])) {
        return false;
    }
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0') {
        return false;
    }
    *out_value = value;
    return true;
}

bool hps_args_f64(const char *text, double *out_value)
{
    char *end;

    if (text[0] == '\0' || isspace((unsigned char)text[0])) {
        return false;
    }
    double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value)) {
        return false;
    }
    *out_value = value;
    return true;
}

struct unit {
    const char *name;
    double factor;
};

/* A number that is not negative and one of the units (NULL-terminated) into an integer. */
static bool parse_scaled(const char *text, const struct unit *units, uint64_t *out_value)
{
    char *end;

    if (!isdigit((unsigned char)text[0]) && text[0] != '.') {
        return false;
    }
    double number = strtod(text, &end);
    for (; units->name != NULL; units++) {
        if (strcmp(units->name, end) == 0) {
            double scaled = number * units->factor;
            if (!(scaled >= 0 && scaled < 9.2e18)) {
                return false;
            }
            *out_value = (uint64_t)(scaled + 0.5);
            return true;
        }
    }
    return false;
}

bool hps_args_duration_us(const char *text, uint64_t *out_us)
{
    static const struct unit units[] = {{"", 1e6},    {"s", 1e6}, {"ms", 1e3},  {"us", 1},
                                        {"min", 6e7}, {"m", 6e7}, {"h", 3.6e9}, {NULL, 0}};

    return parse_scaled(text, units, out_us);
}

bool hps_args_bytes(const char *text, uint64_t *out_bytes)
{
    static const struct unit units[] = {{"", 1},
                                        {"B", 1},
                                        {"KB", 1e3},
                                        {"MB", 1e6},
                                        {"GB", 1e9},
                                        {"TB", 1e12},
                                        {"KiB", 1024.0},
                                        {"MiB", 1048576.0},
                                        {"GiB", 1073741824.0},
                                        {"K", 1024.0},
                                        {"M", 1048576.0},
                                        {"G", 1073741824.0},
                                        {"TiB", 1099511627776.0},
                                        {NULL, 0}};

    return parse_scaled(text, units, out_bytes);
}

static bool list_add(struct hps_arg_list *list, const char *text)
{
    if (list->n == HPS_ARG_LIST_MAX) {
        return false;
    }
    list->items[list->n++] = text;
    return true;
}

/* Is `text` one of the words of "a|b|c"? */
static bool choice_has(const char *choices, const char *text)
{
    size_t size = strlen(text);

    while (size > 0) {
        size_t word = strcspn(choices, "|");
        if (word == size && memcmp(choices, text, size) == 0) {
            return true;
        }
        if (choices[word] == '\0') {
            break;
        }
        choices += word + 1;
    }
    return false;
}

static hps_status arg_store(const struct hps_arg *arg, const char *text, struct hps_error *err)
{
    const char *expected = NULL;

    switch (arg->type) {
    case HPS_ARG_FLAG:
        *(bool *)arg->target = true;
        return HPS_OK;
    case HPS_ARG_TEXT:
        *(const char **)arg->target = text;
        return HPS_OK;
    case HPS_ARG_U64:
        expected = hps_args_u64(text, arg->target) ? NULL : "a whole number from 0";
        break;
    case HPS_ARG_I64:
        expected = hps_args_i64(text, arg->target) ? NULL : "a whole number";
        break;
    case HPS_ARG_US:
        expected = hps_args_duration_us(text, arg->target) ? NULL : "seconds, or 250ms, 3min";
        break;
    case HPS_ARG_BYTES:
        expected = hps_args_bytes(text, arg->target) ? NULL : "bytes, or 64MiB, 4GiB";
        break;
    case HPS_ARG_LIST:
        expected = list_add(arg->target, text) ? NULL : "one of the first 64 of its kind";
        break;
    case HPS_ARG_CHOICE:
        if (choice_has(arg->metavar, text)) {
            *(const char **)arg->target = text;
        } else {
            expected = arg->metavar;
        }
        break;
    }
    if (expected == NULL) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID, "--%s: \"%s\" is not %s", arg->name, text, expected);
}

/* ---- suggestions ----------------------------------------------------------------------------- */

const char *hps_args_suggest(const char *text, const char *const *words)
{
    struct hps_suggestion best = {0};

    for (; *words != NULL; words++) {
        hps_suggest(&best, text, *words);
    }
    return best.text;
}

/* ---- parser ---------------------------------------------------------------------------------- */

struct parser {
    const struct hps_arg *const *tables;
    unsigned n_tables;
};

static const struct hps_arg *find_option(const struct parser *parser, const char *name, size_t size,
                                         char letter)
{
    for (unsigned t = 0; t < parser->n_tables; t++) {
        for (const struct hps_arg *arg = parser->tables[t]; arg != NULL && arg->name != NULL;
             arg++) {
            if (letter != 0 ? arg->letter == letter
                            : strlen(arg->name) == size && memcmp(arg->name, name, size) == 0) {
                return arg;
            }
        }
    }
    return NULL;
}

static hps_status unknown_option(const struct parser *parser, const char *text,
                                 struct hps_error *err)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    char name[WORD_BYTES_MAX];
    unsigned n = 0;

    for (unsigned t = 0; t < parser->n_tables; t++) {
        for (const struct hps_arg *arg = parser->tables[t];
             arg != NULL && arg->name != NULL && n < WORDS_MAX; arg++) {
            words[n++] = arg->name;
        }
    }
    while (*text == '-') {
        text++;
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
    const char *near = hps_args_suggest(name, words);
    if (near != NULL) {
        return hps_error_set(err, HPS_INVALID, "unknown option --%s; did you mean --%s?", name,
                             near);
    }
    return hps_error_set(err, HPS_INVALID, "unknown option --%s", name);
}

/* argv[*at] is an option; advances *at over it and its value. */
static hps_status parse_option(const struct parser *parser, int argc, char **argv, int *at,
                               struct hps_error *err)
{
    const char *text = argv[(*at)++];
    const char *value = NULL;
    const struct hps_arg *arg;

    if (text[1] == '-') {
        size_t size = strcspn(text + 2, "=");
        arg = find_option(parser, text + 2, size, 0);
        value = text[2 + size] == '=' ? text + 2 + size + 1 : NULL;
    } else {
        arg = find_option(parser, NULL, 0, text[1]);
        value = text[2] != '\0' ? text + 2 : NULL;
    }
    if (arg == NULL) {
        return unknown_option(parser, text, err);
    }
    if (arg->type == HPS_ARG_FLAG) {
        if (value != NULL) {
            return hps_error_set(err, HPS_INVALID, "--%s takes no value", arg->name);
        }
    } else if (value == NULL) {
        if (*at >= argc) {
            return hps_error_set(err, HPS_INVALID, "--%s needs a value: %s", arg->name,
                                 arg->metavar);
        }
        value = argv[(*at)++];
    }
    return arg_store(arg, value, err);
}

static bool is_option(const char *text)
{
    return text[0] == '-' && text[1] != '\0' && !isdigit((unsigned char)text[1]);
}

hps_status hps_args_parse(const struct hps_arg *const *tables, unsigned n_tables, bool stop_at_word,
                          int argc, char **argv, int *out_n_words, struct hps_error *err)
{
    struct parser parser = {tables, n_tables};
    bool options_over = false;
    int n_words = 0;
    int i = 0;

    while (i < argc) {
        if (!options_over && strcmp(argv[i], "--") == 0) {
            options_over = true;
            i++;
        } else if (!options_over && is_option(argv[i])) {
            hps_status status = parse_option(&parser, argc, argv, &i, err);
            if (status != HPS_OK) {
                return status;
            }
        } else if (stop_at_word) {
            break;
        } else {
            argv[n_words++] = argv[i++];
        }
    }
    *out_n_words = stop_at_word ? i : n_words;
    return HPS_OK;
}

void hps_args_print(const struct hps_arg *table)
{
    for (const struct hps_arg *arg = table; arg != NULL && arg->name != NULL; arg++) {
        char left[64];
        if (arg->letter != 0) {
            (void)snprintf(left, sizeof(left), "-%c, --%s %s", arg->letter, arg->name,
                           arg->metavar == NULL ? "" : arg->metavar);
        } else {
            (void)snprintf(left, sizeof(left), "--%s %s", arg->name,
                           arg->metavar == NULL ? "" : arg->metavar);
        }
        printf("  %-28s %s\n", left, arg->help);
    }
}
