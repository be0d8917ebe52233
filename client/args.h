/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines of the tools: options from a table (`--name value`, `--name=value`, `-o value`),
 * errors that name the option and suggest the one that was meant. Pure functions over argv. Any
 * thread.
 */
#ifndef HPS_CLIENT_ARGS_H
#define HPS_CLIENT_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum hps_arg_type {
    HPS_ARG_FLAG,   /* bool * */
    HPS_ARG_TEXT,   /* const char ** into argv */
    HPS_ARG_U64,    /* uint64_t * */
    HPS_ARG_I64,    /* int64_t * */
    HPS_ARG_US,     /* uint64_t *, microseconds; the user writes seconds, or 250ms, 3min */
    HPS_ARG_BYTES,  /* uint64_t *; the user may write 4KiB, 1.5GiB, 2MB */
    HPS_ARG_CHOICE, /* const char ** into argv; one of the words of `metavar`, "table|json" */
    HPS_ARG_LIST,   /* struct hps_arg_list *, of every time that the option is given */
};

enum { HPS_ARG_LIST_MAX = 64 };

struct hps_arg_list {
    const char *items[HPS_ARG_LIST_MAX]; /* [n] into argv */
    size_t n;
};

struct hps_arg {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* of the short form, 0: none */
    enum hps_arg_type type;
    const char *metavar; /* "SECONDS"; NULL for flags */
    void *target;
    const char *help;
};

/* Parse argv[0 .. argc) by up to three tables (NULL: none). What is no option is moved to the front
 * of argv in order; "--" ends the options, and "-5" is no option. With `stop_at_word` parsing ends
 * at the first non-option, and *out_n_words counts what was consumed before it.
 *
 * error   INVALID: unknown option, missing or bad value
 */
hps_status hps_args_parse(const struct hps_arg *const *tables, unsigned n_tables, bool stop_at_word,
                          int argc, char **argv, int *out_n_words, struct hps_error *err)
    HPS_MUST_CHECK;
/* Append "  --name METAVAR   help" lines to stdout. */
void hps_args_print(const struct hps_arg *table);

/* Whole text must be a number in range. */
bool hps_args_u64(const char *text, uint64_t *out_value);
bool hps_args_i64(const char *text, int64_t *out_value);
bool hps_args_f64(const char *text, double *out_value);
bool hps_args_duration_us(const char *text, uint64_t *out_us);
bool hps_args_bytes(const char *text, uint64_t *out_bytes);

/* The word of `words` (NULL-terminated) nearest to `text`, or NULL when none is near. */
const char *hps_args_suggest(const char *text, const char *const *words);

#endif
