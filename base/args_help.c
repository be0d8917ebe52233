/* SPDX-License-Identifier: Apache-2.0
 *
 * Printed text of command lines: help, version and errors. Main thread.
 */
#include <stdarg.h>
#include <string.h>

#include "base/args.h"
#include "base/assert.h"
#include "base/build_info.h"
#include "base/text.h"

enum { LINE_COLUMNS = 80, LEFT_COLUMNS_MAX = 26, INDENT = 2, GAP = 2 };
enum { WRONG_BYTES_MAX = 1024 };

/* ---- lines ----------------------------------------------------------------------------------- */

/* Print text that starts at `column`, wrapped at blanks to that column. */
static void print_wrapped(FILE *out, size_t column, const char *text)
{
    size_t at = column;

    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (at > column && at + 1 + word > LINE_COLUMNS) {
            (void)fprintf(out, "\n%*s", (int)column, "");
            at = column;
        }
        at += (size_t)fprintf(out, "%s%.*s", at > column ? " " : "", (int)word, text);
        text += word;
        text += strspn(text, " ");
    }
    (void)fputc('\n', out);
}

/* Print the right column of an entry. The left column is printed and has `width` characters; if it
 * is too wide, the right column starts on a new line. */
static void print_right(FILE *out, size_t width, size_t left_columns, const char *text)
{
    size_t column = INDENT + left_columns + GAP;

    if (width > left_columns) {
        (void)fprintf(out, "\n%*s", (int)column, "");
    } else {
        (void)fprintf(out, "%*s", (int)(left_columns - width) + GAP, "");
    }
    print_wrapped(out, column, text);
}

/* Print the lines of a text, indented. */
static void print_lines(FILE *out, const char *title, const char *text)
{
    if (text == NULL) {
        return;
    }
    (void)fprintf(out, "\n%s\n", title);
    while (*text != '\0') {
        size_t line = strcspn(text, "\n");
        (void)fprintf(out, "%*s%.*s\n", INDENT, "", (int)line, text);
        text += line;
        text += *text == '\n';
    }
}

static size_t wider(size_t columns, size_t width)
{
    return width > columns && width <= LEFT_COLUMNS_MAX ? width : columns;
}

/* ---- help ------------------------------------------------------------------------------------ */

static size_t option_width(const struct hps_arg *arg)
{
    return strlen("-x, --") + strlen(arg->name) +
           (arg->metavar != NULL ? 1 + strlen(arg->metavar) : 0);
}

static void print_option(FILE *out, const struct hps_arg *arg, size_t columns)
{
    char letter[] = {'-', arg->letter, ',', ' ', '\0'};

    (void)fprintf(out, "%*s%s--%s%s%s", INDENT, "", arg->letter != 0 ? letter : "    ", arg->name,
                  arg->metavar != NULL ? " " : "", arg->metavar != NULL ? arg->metavar : "");
    print_right(out, option_width(arg), columns, arg->help);
}

enum { TABLES = 3 };

static void print_options(FILE *out, const char *title, const struct hps_arg *const tables[TABLES])
{
    size_t columns = 0;

    for (int t = 0; t < TABLES; t++) {
        for (const struct hps_arg *arg = tables[t]; arg != NULL && arg->name != NULL; arg++) {
            columns = wider(columns, option_width(arg));
        }
    }
    (void)fprintf(out, "\n%s\n", title);
    for (int t = 0; t < TABLES; t++) {
        for (const struct hps_arg *arg = tables[t]; arg != NULL && arg->name != NULL; arg++) {
            print_option(out, arg, columns);
        }
    }
}

static void print_verbs(FILE *out, const struct hps_program *program)
{
    size_t columns = 0;

    for (const struct hps_command *const *verb = program->verbs; *verb != NULL; verb++) {
        columns = wider(columns, strlen((*verb)->name));
    }
    (void)fprintf(out,
                  "\n"
                  "verbs (for details: %s help VERB):\n",
                  program->self.name);
    for (const struct hps_command *const *verb = program->verbs; *verb != NULL; verb++) {
        (void)fprintf(out, "%*s%s", INDENT, "", (*verb)->name);
        print_right(out, strlen((*verb)->name), columns, (*verb)->summary);
    }
}

static void print_usage(FILE *out, const struct hps_program *program,
                        const struct hps_command *verb)
{
    const char *words = verb != NULL ? verb->words : program->self.words;
    const char *title = "usage:";

    do {
        size_t line = strcspn(words, "\n");
        (void)fprintf(out, "%-6s %s%s%s%s%.*s [option...]\n", title, program->self.name,
                      verb != NULL ? " " : "", verb != NULL ? verb->name : "", line > 0 ? " " : "",
                      (int)line, words);
        words += line;
        words += *words == '\n';
        title = "";
    } while (*words != '\0');
}

void hps_args_help(const struct hps_program *program, const struct hps_command *verb, FILE *out)
{
    static const struct hps_arg builtin[] = {
        {"help", 'h', HPS_ARG_FLAG, NULL, NULL, "print this and exit"},
        {"version", 0, HPS_ARG_FLAG, NULL, NULL, "print the version and exit"},
        HPS_ARGS_END,
    };
    const struct hps_arg *const of_verb[TABLES] = {verb != NULL ? verb->args : NULL};
    const struct hps_arg *const of_all[TABLES] = {program->self.args, program->self.shared_args,
                                                  builtin};
    const struct hps_command *command = verb != NULL ? verb : &program->self;

    print_usage(out, program, verb);
    (void)fprintf(out, "\n%s\n", command->summary);
    if (command->details != NULL) {
        (void)fprintf(out, "%s\n", command->details);
    }
    if (verb == NULL && program->verbs != NULL) {
        print_verbs(out, program);
    }
    if (of_verb[0] != NULL) {
        print_options(out, "options:", of_verb);
    }
    print_options(out, program->verbs != NULL ? "options of every verb:" : "options:", of_all);
    print_lines(out, "example:", command->example);
    print_lines(out, "exit codes:", program->exit_codes);
}

void hps_args_version(const struct hps_program *program, FILE *out)
{
    (void)fprintf(out, "%s %s (%s)\n%s", program->self.name, hps_build_version, hps_build_revision,
                  program->parts != NULL ? program->parts : "");
}

/* ---- errors ---------------------------------------------------------------------------------- */

int hps_args_wrong(const struct hps_program *program, const struct hps_command *verb,
                   const char *fmt, ...)
{
    char raw[WRONG_BYTES_MAX], text[WRONG_BYTES_MAX]; /* may contain user input */
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(raw, sizeof(raw), fmt, args);
    va_end(args);
    (void)hps_text_plain(raw, strlen(raw), text, sizeof(text));
    (void)fprintf(stderr, "%s: %s", program->self.name, text);
    (void)fprintf(stderr, "; see %s%s%s --help\n", program->self.name, verb != NULL ? " " : "",
                  verb != NULL ? verb->name : "");
    return HPS_ARGS_EXIT_USAGE;
}

int hps_args_answer(const struct hps_program *program, const struct hps_args *args)
{
    HPS_ASSERT(args->ask != HPS_ARGS_RUN);
    if (args->ask == HPS_ARGS_HELP) {
        hps_args_help(program, args->verb, stdout);
    } else {
        hps_args_version(program, stdout);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

bool hps_args_start(const struct hps_program *program, int argc, char **argv,
                    struct hps_args *out_args, int *out_code)
{
    struct hps_error err = {0};

    if (hps_args_read(program, argc, argv, out_args, &err) != HPS_OK) {
        *out_code = hps_args_wrong(program, out_args->verb, "%s", err.text);
        return false;
    }
    if (out_args->ask != HPS_ARGS_RUN) {
        *out_code = hps_args_answer(program, out_args);
    }
    return out_args->ask == HPS_ARGS_RUN;
}
