/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines of all programs: `--name VALUE`, `--name=VALUE`, `-n VALUE`, `--` before words that
 * begin with a dash, `-h`, `--help`, `help` and `--version`. Programs with verbs also accept `VERB
 * --help` and `help VERB`.
 *
 * A program describes its options in tables; its help is printed from the same tables. After a bad
 * command line, a program prints one line of this form and exits with code 2:
 *
 *     hpsctl: --timeout "soon": expected seconds, or 250ms, 3min; see hpsctl load --help
 *
 * For the main thread only.
 */
#ifndef HPS_BASE_ARGS_H
#define HPS_BASE_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* Type of an option, with the C type of its `target`. Strings point into argv. */
enum hps_arg_type {
    HPS_ARG_FLAG,   /* bool *: an option without a value */
    HPS_ARG_TEXT,   /* const char ** */
    HPS_ARG_PAIR,   /* const char *[2]: an option with two values */
    HPS_ARG_U64,    /* uint64_t * */
    HPS_ARG_I64,    /* int64_t * */
    HPS_ARG_US,     /* uint64_t *: microseconds; users write 2.5 (seconds), 250ms or 3min */
    HPS_ARG_BYTES,  /* uint64_t *: bytes; users write 4096, 4KiB, 1.5GiB or 2MB */
    HPS_ARG_CHOICE, /* const char **: one of the words of `metavar`, such as "table|json" */
    HPS_ARG_LIST,   /* struct hps_arg_list *: each use of the option adds a value */
};

enum { HPS_ARG_LIST_MAX = 64, HPS_ARGS_EXIT_USAGE = 2 };

struct hps_arg_list {
    const char *items[HPS_ARG_LIST_MAX]; /* [n] strings of argv */
    size_t n;
};

struct hps_arg {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* short form; 0: there is no short form */
    enum hps_arg_type type;
    const char *metavar; /* name of the value in the help: "SECONDS"; NULL for flags */
    void *target;        /* receives the value; unchanged if the option is not given */
    const char *help;    /* includes unit and default; wrapped when printed */
};

#define HPS_ARGS_END                            \
    {                                           \
        NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL \
    }

/* A program, or one verb of a program. */
struct hps_command {
    const char *name;           /* NULL ends a table of verbs */
    const char *words;          /* arguments in the help: "MODEL VERSION"; one line per form */
    const char *summary;        /* one line */
    const struct hps_arg *args; /* options that are not in shared_args; may be NULL */
    const struct hps_arg *shared_args; /* options shared with other programs; may be NULL */
    const char *choices;               /* values of the first argument: "get|reset"; NULL: any */
    int n_words_min;
    int n_words_max;
    const char *details; /* text after the summary in the help; may be NULL */
    const char *example; /* command lines for the help; may be NULL */
};

/* An option of earlier releases. Its use is an error that says what to do instead. */
struct hps_arg_removed {
    const char *name;    /* without dashes; NULL ends a table */
    const char *instead; /* text of the error: "use perf_analyzer" */
};

struct hps_program {
    struct hps_command self;                /* its `args` are accepted with every verb */
    const struct hps_command *const *verbs; /* ends with NULL; NULL if the program has no verbs */
    const char *exit_codes;                 /* text of the help: one line per code */
    const char *parts; /* --version prints it after the first line; may be NULL */
    const struct hps_arg_removed *removed; /* may be NULL */
};

/* What a command line requests: to run the program, or to print its help or version. */
enum hps_args_ask { HPS_ARGS_RUN, HPS_ARGS_HELP, HPS_ARGS_VERSION };

/* The result of hps_args_read. The values of options are not here but in their targets. */
struct hps_args {
    enum hps_args_ask ask;
    const struct hps_command *verb; /* NULL if the program has no verbs or none was given */
    size_t verb_index;              /* in program->verbs */
    char **words;                   /* [n_words] in argv: arguments that are not options */
    int n_words;
    uint32_t choice; /* index of words[0] in `choices` of the command */
};

/* Read a command line: store values of options in their targets, and move other words to the front
 * of argv. Reading stops at a request for help or version. Prints nothing.
 *
 * owner   values and words point into argv
 * error   INVALID: unknown option or verb, missing or bad value, too few or too many words. `err`
 *         names the given and the expected input. out_args->verb is set if the verb was read
 */
hps_status hps_args_read(const struct hps_program *program, int argc, char **argv,
                         struct hps_args *out_args, struct hps_error *err) HPS_MUST_CHECK;

/* Like hps_args_read, but also prints the help, the version or the error. For main(): if the result
 * is true, run the program; if false, exit with *out_code. */
bool hps_args_start(const struct hps_program *program, int argc, char **argv,
                    struct hps_args *out_args, int *out_code) HPS_MUST_CHECK;

/* Print the requested help or version to stdout. Returns the exit code. */
int hps_args_answer(const struct hps_program *program, const struct hps_args *args);

/* Print "PROGRAM: text; see PROGRAM VERB --help" to stderr, or "see PROGRAM --help" if verb is
 * NULL. The text has the form "given: expected". Returns HPS_ARGS_EXIT_USAGE. */
int hps_args_wrong(const struct hps_program *program, const struct hps_command *verb,
                   const char *fmt, ...) HPS_PRINTF(3, 4);

/* Print the help of a program (verb NULL) or of one verb. */
void hps_args_help(const struct hps_program *program, const struct hps_command *verb, FILE *out);
/* Print "hpsctl 0.2.0 (0123456789ab)" and the lines of program->parts. */
void hps_args_version(const struct hps_program *program, FILE *out);

/* The allowed range of a numeric option. */
struct hps_arg_range {
    const char *name; /* of the option */
    uint64_t value, min, max;
};

/* Check the values of ranges[n]. INVALID: a value is out of its range; `err` names the first such
 * option. */
hps_status hps_args_ranges(const struct hps_arg_range *ranges, size_t n, struct hps_error *err)
    HPS_MUST_CHECK;

/* Parse a number. False: the text has other characters, or the number does not fit the type. */
bool hps_args_u64(const char *text, uint64_t *out_value);
bool hps_args_i64(const char *text, int64_t *out_value);
bool hps_args_f64(const char *text, double *out_value);
bool hps_args_key(const char *text, uint64_t *out_key);        /* -2^63 to 2^64 - 1 */
bool hps_args_duration_us(const char *text, uint64_t *out_us); /* text as for HPS_ARG_US */
bool hps_args_bytes(const char *text, uint64_t *out_bytes);    /* text as for HPS_ARG_BYTES */

/* Index of `word` in a list such as "table|json", from 0. False: it is not in the list. */
bool hps_args_choice(const char *choices, const char *word, uint32_t *out_index);

/* Write " (did you mean WORD?)" to `out`. WORD is the most similar word to `text` in `words`
 * (NULL-terminated), with `dashes` ("--" or "") before it. If no word is similar (base/suggest.h),
 * `out` becomes "". Returns `out`. */
enum { HPS_ARGS_HINT_BYTES = 96 };
const char *hps_args_hint(const char *text, const char *const *words, const char *dashes,
                          char out[HPS_ARGS_HINT_BYTES]);
/* Like hps_args_hint, for a list of words such as "table|json". */
const char *hps_args_hint_choice(const char *text, const char *choices,
                                 char out[HPS_ARGS_HINT_BYTES]);

#endif
