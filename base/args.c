/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser of command lines; args_help.c prints. Main thread.
 */
#include "base/args.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/suggest.h"
#include "base/text.h"

enum {
    WORD_BYTES_MAX = 64,
    WORDS_MAX = 128,
    CHOICES_BYTES_MAX = 128,
    GIVEN_BYTES = 160,
    EXPECTED_BYTES = 240
};

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

bool hps_args_key(const char *text, uint64_t *out_key)
{
    int64_t key;

    if (!hps_args_i64(text, &key)) {
        return hps_args_u64(text, out_key);
    }
    *out_key = (uint64_t)key;
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

/* Parse a number >= 0 with a unit of `units` (NULL-terminated) as an integer. */
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

bool hps_args_choice(const char *choices, const char *word, uint32_t *out_index)
{
    for (uint32_t index = 0;; index++) {
        size_t size = strcspn(choices, "|");
        if (hps_text_is(word, choices, size)) {
            *out_index = index;
            return true;
        }
        if (choices[size] == '\0') {
            return false;
        }
        choices += size + 1;
    }
}

/* NULL: the value was stored; else the value that the type expects. */
static const char *arg_store(const struct hps_arg *arg, const char *text)
{
    uint32_t ignored;

    switch (arg->type) {
    case HPS_ARG_TEXT:
        *(const char **)arg->target = text;
        return NULL;
    case HPS_ARG_U64:
        return hps_args_u64(text, arg->target) ? NULL : "a whole number from 0";
    case HPS_ARG_I64:
        return hps_args_i64(text, arg->target) ? NULL : "a whole number";
    case HPS_ARG_US:
        return hps_args_duration_us(text, arg->target) ? NULL : "seconds, or 250ms, 3min";
    case HPS_ARG_BYTES:
        return hps_args_bytes(text, arg->target) ? NULL : "bytes, or 64MiB, 4GiB";
    case HPS_ARG_LIST:
        return list_add(arg->target, text) ? NULL : "at most 64 times";
    case HPS_ARG_CHOICE:
        if (!hps_args_choice(arg->metavar, text, &ignored)) {
            return arg->metavar;
        }
        *(const char **)arg->target = text;
        return NULL;
    case HPS_ARG_FLAG:
    case HPS_ARG_PAIR:
        break;
    }
    HPS_ASSERT(false); /* take_option stores these */
    return NULL;
}

hps_status hps_args_ranges(const struct hps_arg_range *ranges, size_t n, struct hps_error *err)
{
    for (const struct hps_arg_range *at = ranges; at < ranges + n; at++) {
        HPS_ASSERT(at->min <= at->max);
        if (at->value < at->min || at->value > at->max) {
            return hps_error_set(err, HPS_INVALID,
                                 "--%s %" PRIu64 ": expected %" PRIu64 " to %" PRIu64, at->name,
                                 at->value, at->min, at->max);
        }
    }
    return HPS_OK;
}

/* ---- suggestions ----------------------------------------------------------------------------- */

const char *hps_args_hint(const char *text, const char *const *words, const char *dashes,
                          char out[HPS_ARGS_HINT_BYTES])
{
    struct hps_suggestion best = {0};

    for (; *words != NULL; words++) {
        hps_suggest(&best, text, *words);
    }
    out[0] = '\0';
    if (best.text != NULL) {
        (void)snprintf(out, HPS_ARGS_HINT_BYTES, " (did you mean %s%s?)", dashes, best.text);
    }
    return out;
}

const char *hps_args_hint_choice(const char *text, const char *choices,
                                 char out[HPS_ARGS_HINT_BYTES])
{
    char copy[CHOICES_BYTES_MAX];
    const char *words[WORDS_MAX + 1] = {NULL};
    unsigned n = 0;
    char *rest = copy;

    HPS_ASSERT(strlen(choices) < sizeof(copy));
    memcpy(copy, choices, strlen(choices) + 1);
    for (char *word = strsep(&rest, "|"); word != NULL && n < WORDS_MAX;
         word = strsep(&rest, "|")) {
        words[n++] = word;
    }
    return hps_args_hint(text, words, "", out);
}

/* ---- options --------------------------------------------------------------------------------- */

static const struct hps_arg builtin_args[] = {
    {"help", 'h', HPS_ARG_FLAG, NULL, NULL, ""},
    {"version", 0, HPS_ARG_FLAG, NULL, NULL, ""},
    HPS_ARGS_END,
};

enum { TABLES = 4 };

struct reader {
    const struct hps_program *program;
    const struct hps_arg *tables[TABLES]; /* the table of the verb first, builtin_args last */
    int argc;
    char **argv;
    int at; /* next argument */
    bool options_over;
    struct hps_args args; /* the result so far */
    struct hps_error *err;
};

static const struct hps_arg *find_option(const struct reader *reader, const char *name, size_t size,
                                         char letter)
{
    for (int t = 0; t < TABLES; t++) {
        for (const struct hps_arg *arg = reader->tables[t]; arg != NULL && arg->name != NULL;
             arg++) {
            if (letter != 0 ? arg->letter == letter : hps_text_is(arg->name, name, size)) {
                return arg;
            }
        }
    }
    return NULL;
}

static hps_status unknown_option(const struct reader *reader, const char *text)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    char name[WORD_BYTES_MAX], hint[HPS_ARGS_HINT_BYTES];
    unsigned n = 0;

    for (int t = 0; t < TABLES; t++) {
        for (const struct hps_arg *arg = reader->tables[t];
             arg != NULL && arg->name != NULL && n < WORDS_MAX; arg++) {
            words[n++] = arg->name;
        }
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
    for (const struct hps_arg_removed *gone = reader->program->removed;
         gone != NULL && gone->name != NULL; gone++) {
        if (strcmp(name + strspn(name, "-"), gone->name) == 0) {
            return hps_error_set(reader->err, HPS_INVALID, "%s: removed; %s", name, gone->instead);
        }
    }
    return hps_error_set(reader->err, HPS_INVALID, "%s: unknown option%s", name,
                         hps_args_hint(name + strspn(name, "-"), words, "--", hint));
}

/* A value of the option: the text attached to it, else the next argument. */
static const char *take_value(struct reader *reader, const struct hps_arg *arg,
                              const char **attached)
{
    const char *value = *attached;

    *attached = NULL;
    if (value == NULL && reader->at < reader->argc) {
        value = reader->argv[reader->at++];
    }
    if (value == NULL) {
        hps_error_set(reader->err, HPS_INVALID, "--%s: got no value, expected %s", arg->name,
                      arg->metavar);
    }
    return value;
}

static hps_status take_flag(struct reader *reader, const struct hps_arg *arg, const char *value);

static hps_status take_option(struct reader *reader)
{
    const char *text = reader->argv[reader->at++];
    const char *attached = NULL;
    const struct hps_arg *arg;

    if (text[1] == '-') {
        size_t size = strcspn(text + 2, "=");
        arg = find_option(reader, text + 2, size, 0);
        attached = text[2 + size] == '=' ? text + 2 + size + 1 : NULL;
    } else {
        arg = find_option(reader, NULL, 0, text[1]);
        attached = text[2] != '\0' ? text + 2 : NULL;
    }
    if (arg == NULL) {
        return unknown_option(reader, text);
    }
    if (arg->type == HPS_ARG_FLAG) {
        return take_flag(reader, arg, attached);
    }
    const char *value = take_value(reader, arg, &attached);
    if (value == NULL) {
        return HPS_INVALID;
    }
    if (arg->type == HPS_ARG_PAIR) {
        const char *other = take_value(reader, arg, &attached);
        if (other == NULL) {
            return HPS_INVALID;
        }
        ((const char **)arg->target)[0] = value;
        ((const char **)arg->target)[1] = other;
        return HPS_OK;
    }
    const char *expected = arg_store(arg, value);
    if (expected == NULL) {
        return HPS_OK;
    }
    char hint[HPS_ARGS_HINT_BYTES] = "";
    if (arg->type == HPS_ARG_CHOICE) {
        (void)hps_args_hint_choice(value, arg->metavar, hint);
    }
    return hps_error_set(reader->err, HPS_INVALID, "--%s \"%s\": expected %s%s", arg->name, value,
                         expected, hint);
}

/* ---- verbs and words ------------------------------------------------------------------------- */

static hps_status take_verb(struct reader *reader)
{
    const char *name = reader->argv[reader->at];
    const char *names[WORDS_MAX + 1] = {NULL};
    char hint[HPS_ARGS_HINT_BYTES];
    unsigned n = 0;

    for (const struct hps_command *const *verb = reader->program->verbs; *verb != NULL; verb++) {
        HPS_ASSERT(n < WORDS_MAX);
        if (strcmp((*verb)->name, name) == 0) {
            reader->args.verb = *verb;
            reader->args.verb_index = n;
            reader->tables[0] = (*verb)->args;
            reader->at++;
            reader->args.words = reader->argv + reader->at;
            reader->options_over = false;
            return HPS_OK;
        }
        names[n++] = (*verb)->name;
    }
    return hps_error_set(reader->err, HPS_INVALID, "%s: unknown verb%s", name,
                         hps_args_hint(name, names, "", hint));
}

static bool is_option(const char *text)
{
    return text[0] == '-' && text[1] != '\0' && !isdigit((unsigned char)text[1]);
}

/* The argument after `help`, `-h` or `--help` names the verb. */
static hps_status take_help(struct reader *reader)
{
    reader->args.ask = HPS_ARGS_HELP;
    if (reader->program->verbs != NULL && reader->args.verb == NULL && reader->at < reader->argc &&
        !is_option(reader->argv[reader->at])) {
        return take_verb(reader);
    }
    return HPS_OK;
}

static hps_status take_flag(struct reader *reader, const struct hps_arg *arg, const char *value)
{
    if (value != NULL) {
        return hps_error_set(reader->err, HPS_INVALID, "--%s \"%s\": expected no value", arg->name,
                             value);
    }
    if (arg == &builtin_args[0]) {
        return take_help(reader);
    }
    if (arg == &builtin_args[1]) {
        reader->args.ask = HPS_ARGS_VERSION;
        return HPS_OK;
    }
    *(bool *)arg->target = true;
    return HPS_OK;
}

static hps_status take_word(struct reader *reader)
{
    bool first = reader->program->verbs != NULL ? reader->args.verb == NULL : reader->at == 1;

    if (first && strcmp(reader->argv[reader->at], "help") == 0) {
        reader->at++;
        return take_help(reader);
    }
    if (first && reader->program->verbs != NULL) {
        return take_verb(reader);
    }
    reader->args.words[reader->args.n_words++] = reader->argv[reader->at++];
    return HPS_OK;
}

/* "load a b", cut to size. */
static void words_given(const struct hps_args *args, char out[GIVEN_BYTES])
{
    size_t used = 0;

    out[0] = '\0';
    for (int i = args->verb != NULL ? -1 : 0; i < args->n_words && used + 1 < GIVEN_BYTES; i++) {
        int n = snprintf(out + used, GIVEN_BYTES - used, "%s%s", used > 0 ? " " : "",
                         i < 0 ? args->verb->name : args->words[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* All forms of a command, in one line. */
static void words_expected(const struct hps_command *command, char out[EXPECTED_BYTES])
{
    size_t used = 0;

    out[0] = '\0';
    for (const char *at = command->words; *at != '\0' && used + 1 < EXPECTED_BYTES;) {
        size_t line = strcspn(at, "\n");
        int n = snprintf(out + used, EXPECTED_BYTES - used, "%s%.*s", used > 0 ? " or " : "",
                         (int)line, at);
        used += n > 0 ? (size_t)n : 0;
        at += line + (at[line] == '\n');
    }
}

static hps_status check_words(struct reader *reader)
{
    struct hps_args *args = &reader->args;
    const struct hps_command *command = args->verb != NULL ? args->verb : &reader->program->self;
    char given[GIVEN_BYTES], expected[EXPECTED_BYTES];

    if (reader->program->verbs != NULL && args->verb == NULL) {
        return hps_error_set(reader->err, HPS_INVALID, "no verb: expected %s", command->words);
    }
    words_given(args, given);
    if (command->choices != NULL && args->n_words > 0 &&
        !hps_args_choice(command->choices, args->words[0], &args->choice)) {
        char hint[HPS_ARGS_HINT_BYTES];
        return hps_error_set(reader->err, HPS_INVALID, "%s: expected %s%s", given, command->choices,
                             hps_args_hint_choice(args->words[0], command->choices, hint));
    }
    if (args->n_words >= command->n_words_min && args->n_words <= command->n_words_max) {
        return HPS_OK;
    }
    words_expected(command, expected);
    return hps_error_set(reader->err, HPS_INVALID, "%s: expected %s", given,
                         command->n_words_max == 0 ? "options alone" : expected);
}

hps_status hps_args_read(const struct hps_program *program, int argc, char **argv,
                         struct hps_args *out_args, struct hps_error *err)
{
    HPS_ASSERT(argc >= 0);
    struct reader reader = {
        .program = program,
        .tables = {NULL, program->self.args, program->self.shared_args, builtin_args},
        .argc = argc,
        .argv = argv,
        .at = argc > 0 ? 1 : 0,
        .err = err};
    reader.args.words = argv + reader.at;
    hps_status status = HPS_OK;

    while (status == HPS_OK && reader.at < argc && reader.args.ask == HPS_ARGS_RUN) {
        const char *text = argv[reader.at];
        if (!reader.options_over && strcmp(text, "--") == 0) {
            reader.options_over = true;
            reader.at++;
        } else if (!reader.options_over && is_option(text)) {
            status = take_option(&reader);
        } else {
            status = take_word(&reader);
        }
    }
    if (status == HPS_OK && reader.args.ask == HPS_ARGS_RUN) {
        status = check_words(&reader);
    }
    HPS_ASSERT(status != HPS_OK || reader.args.ask != HPS_ARGS_RUN || program->verbs == NULL ||
               reader.args.verb != NULL);
    *out_args = reader.args;
    return status;
}
