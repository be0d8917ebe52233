/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines of all programs, understood alike everywhere: `--name VALUE`, `--name=VALUE`, `-n
 * VALUE`, `--` before words that begin with a dash, `-h`, `--help`, `help` and `--version`; with
 * verbs also `VERB --help` and `help VERB`. A program says in tables what it takes, and its help is
 * printed from the same tables. What is wrong is said in one line of this form, with exit code 2:
 *
 *     hpsctl: --timeout "soon": expected seconds, or 250ms, 3min; see hpsctl load --help
 *
 * Main thread.
 */
#ifndef HPS_BASE_ARGS_H
#define HPS_BASE_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum hps_arg_type {
    HPS_ARG_FLAG,   /* bool * */
    HPS_ARG_TEXT,   /* const char ** into argv */
    HPS_ARG_PAIR,   /* const char *[2] into argv: an option with two values */
    HPS_ARG_U64,    /* uint64_t * */
    HPS_ARG_I64,    /* int64_t * */
    HPS_ARG_US,     /* uint64_t *, microseconds; the user writes seconds, or 250ms, 3min */
    HPS_ARG_BYTES,  /* uint64_t *; the user may write 4KiB, 1.5GiB, 2MB */
    HPS_ARG_CHOICE, /* const char ** into argv; one of the words of `metavar`, "table|json" */
    HPS_ARG_LIST,   /* struct hps_arg_list *, of every time that the option is given */
};

enum { HPS_ARG_LIST_MAX = 64, HPS_ARGS_EXIT_USAGE = 2 };

struct hps_arg_list {
    const char *items[HPS_ARG_LIST_MAX]; /* [n] into argv */
    size_t n;
};

struct hps_arg {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* of the short form, 0: none */
    enum hps_arg_type type;
    const char *metavar; /* what help calls the value: "SECONDS"; NULL for flags */
    void *target;        /* left alone when the option is not given */
    const char *help;    /* wrapped where it is printed; says the unit and the default */
};

#define HPS_ARGS_END                            \
    {                                           \
        NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL \
    }

/* A program, or one verb of a program. */
struct hps_command {
    const char *name;    /* NULL ends a table of verbs */
    const char *words;   /* what stands behind the name: "MODEL VERSION"; a line for each way */
    const char *summary; /* what it does, in a line */
    const struct hps_arg *args;        /* NULL: none of its own */
    const struct hps_arg *shared_args; /* that other programs have, too; NULL: none */
    const char *choices;               /* what the first word may be, "get|reset"; NULL: anything */
    int n_words_min;
    int n_words_max;
    const char *details; /* what else a newcomer has to know, in lines; NULL: nothing */
    const char *example; /* lines that can be pasted; NULL: none */
};

/* An option that earlier releases had. */
struct hps_arg_removed {
    const char *name;    /* without dashes; NULL ends a table */
    const char *instead; /* what the user does now: "use perf_analyzer" */
};

struct hps_program {
    struct hps_command self;                /* its `args` are those of every verb, too */
    const struct hps_command *const *verbs; /* ends with NULL; NULL: a program without verbs */
    const char *exit_codes;                 /* in lines */
    const char *parts;                      /* further lines of --version; NULL: none */
    const struct hps_arg_removed *removed;  /* NULL: none */
};

enum hps_args_ask { HPS_ARGS_RUN, HPS_ARGS_HELP, HPS_ARGS_VERSION };

/* What a command line says beside its options. */
struct hps_args {
    enum hps_args_ask ask;
    const struct hps_command *verb; /* NULL: a program without verbs, or none was named */
    size_t verb_index;              /* in program->verbs */
    char **words;                   /* [n_words] in argv: what is no option, in order */
    int n_words;
    uint32_t choice; /* which of the choices the first word is */
};

/* Read a command line: options into their targets, words to the front of argv. Reading ends where
 * help or the version is asked for. Prints nothing.
 *
 * owner   values and words are in argv
 * error   INVALID: unknown option or verb, missing or bad value, too few or many words; `err` says
 *         what was given and what was expected; out_args->verb is set if it was known
 */
hps_status hps_args_read(const struct hps_program *program, int argc, char **argv,
                         struct hps_args *out_args, struct hps_error *err) HPS_MUST_CHECK;

/* The same for a main(): prints help or version where they are asked for, and what is wrong.
 * True: go on; false: exit with *out_code. */
bool hps_args_start(const struct hps_program *program, int argc, char **argv,
                    struct hps_args *out_args, int *out_code) HPS_MUST_CHECK;

/* Print to stdout the help or the version that was asked for. Returns what to exit with. */
int hps_args_answer(const struct hps_program *program, const struct hps_args *args);

/* Print to stderr "PROGRAM: text; see PROGRAM VERB --help", of a text "given: expected". Verb NULL:
 * of the program. Returns HPS_ARGS_EXIT_USAGE. */
int hps_args_wrong(const struct hps_program *program, const struct hps_command *verb,
                   const char *fmt, ...) HPS_PRINTF(3, 4);

/* Print the help of a program (verb NULL) or of a verb of it. */
void hps_args_help(const struct hps_program *program, const struct hps_command *verb, FILE *out);
/* Print "hpsctl 0.1.0 (0123456789ab)" and what else the program has to say. */
void hps_args_version(const struct hps_program *program, FILE *out);

/* A number that an option has set must be in a range. */
struct hps_arg_range {
    const char *name; /* of the option */
    uint64_t value, min, max;
};

/* error   INVALID: names the first of ranges[n] that does not hold */
hps_status hps_args_ranges(const struct hps_arg_range *ranges, size_t n, struct hps_error *err)
    HPS_MUST_CHECK;

/* Whole text must be a number in range. */
bool hps_args_u64(const char *text, uint64_t *out_value);
bool hps_args_i64(const char *text, int64_t *out_value);
bool hps_args_f64(const char *text, double *out_value);
bool hps_args_key(const char *text, uint64_t *out_key); /* 64 bits, signed or not */
bool hps_args_duration_us(const char *text, uint64_t *out_us);
bool hps_args_bytes(const char *text, uint64_t *out_bytes);

/* Which of "table|json" is the word, from 0? False: none. */
bool hps_args_choice(const char *choices, const char *word, uint32_t *out_index);

/* " (did you mean WORD?)" of the nearest of the words (NULL-terminated) into `out`, or "" when none
 * is near; returns `out`. `dashes` is put before the word. */
enum { HPS_ARGS_HINT_BYTES = 96 };
const char *hps_args_hint(const char *text, const char *const *words, const char *dashes,
                          char out[HPS_ARGS_HINT_BYTES]);
/* The same of words as "table|json". */
const char *hps_args_hint_choice(const char *text, const char *choices,
                                 char out[HPS_ARGS_HINT_BYTES]);

#endif
