/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl: operate a running hpsd through its admin socket. This file knows the verbs and the
 * options that all of them have. One thread.
 */
#include "tools/hpsctl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERBS_MAX = 64, ARG_TABLES_MAX = 2 };

#define TIMEOUT_US_DEFAULT (UINT64_C(10) * 1000 * 1000)
#define ADDRESS_DEFAULT    "unix:/run/hpsd/admin.sock"

const struct hpsctl_verb hpsctl_verbs[] = {
    {"ping", "", "is the server there and ready (exit 5: not ready)", 0, 0, NULL, false,
     hpsctl_ping},
    {"status", "", "addresses, tiers, memory, reasons for not being ready", 0, 0, NULL, false,
     hpsctl_status},
    {"models", "", "models and their versions", 0, 0, NULL, false, hpsctl_models},
    {"tables", "[MODEL]", "tables, widths and row counts", 0, 1, hpsctl_tables_args, false,
     hpsctl_tables},
    {"load", "MODEL --from DIR|--table NAME=PATH...|--config FILE",
     "load a new version beside the active one", 1, 1, hpsctl_load_args, false, hpsctl_load},
    {"activate", "MODEL VERSION", "switch a model to a resident version", 2, 2,
     hpsctl_activate_args, false, hpsctl_activate},
    {"rollback", "MODEL", "switch back to the version before", 1, 1, NULL, false, hpsctl_rollback},
    {"unload", "MODEL VERSION", "drop a version; the active one only as the last", 2, 2, NULL,
     false, hpsctl_unload},
    {"lookup", "MODEL TABLE KEY...", "rows of keys", 3, 1 << 20, hpsctl_lookup_args, false,
     hpsctl_lookup},
    {"explain", "MODEL TABLE KEY", "what each tier says about one key", 3, 3, hpsctl_explain_args,
     false, hpsctl_explain},
    {"stats", "[MODEL]", "keys and hits per table and tier", 0, 1, NULL, false, hpsctl_stats},
    {"top", "", "traffic and hit rates, refreshed", 0, 0, hpsctl_top_args, false, hpsctl_top},
    {"updates", "[pause|resume|seek|accept-gap]",
     "what versions have of their updates; stop, move, mend", 0, 1, hpsctl_updates_args, false,
     hpsctl_updates},
    {"wait-for", "TOPIC:PARTITION:OFFSET|now", "wait until an update is visible to look-ups", 1, 1,
     hpsctl_wait_for_args, false, hpsctl_wait_for},
    {"snapshot", "create|restore DIR", "keep the persistent store; make one from what was kept", 2,
     2, hpsctl_snapshot_args, true, hpsctl_snapshot},
    {"slowlog", "get|reset", "the last slow requests and where their time went", 1, 1, NULL, false,
     hpsctl_slowlog},
    {"config", "get", "the effective configuration as JSON", 1, 1, NULL, false, hpsctl_config},
    {"log-level", "debug|info|warn|error", "change the level of the log", 1, 1, NULL, false,
     hpsctl_log_level},
    {"drain", "", "stop taking connections, finish calls, exit", 0, 0, NULL, false, hpsctl_drain},
    {"completion", "bash", "print a completion script", 1, 1, NULL, true, hpsctl_completion},
    {NULL, NULL, NULL, 0, 0, NULL, false, NULL},
};

static struct hpsctl state = {.output = "table", .timeout_us = 0};

static const struct hps_arg global_args[] = {
    {"addr", 0, HPS_ARG_TEXT, "ADDR", &state.connect.address,
     "unix:PATH or host:port; else $HPSD_ADDR, else " ADDRESS_DEFAULT},
    {"token-file", 0, HPS_ARG_TEXT, "FILE", &state.connect.token_file, "bearer token, one line"},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &state.timeout_us,
     "give up after this (default 10; load, activate, snapshot: never)"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &state.output, "how to print (default table)"},
    {"tls", 0, HPS_ARG_FLAG, NULL, &state.connect.tls, "TLS with the system's roots"},
    {"tls-ca", 0, HPS_ARG_TEXT, "FILE", &state.connect.tls_ca, "TLS with these roots (PEM)"},
    {"tls-cert", 0, HPS_ARG_TEXT, "FILE", &state.connect.tls_cert, "certificate of this client"},
    {"tls-key", 0, HPS_ARG_TEXT, "FILE", &state.connect.tls_key, "its key"},
    {"help", 'h', HPS_ARG_FLAG, NULL, &state.help, "this text, or that of a verb"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

const struct hps_arg *hpsctl_global_args(void)
{
    return global_args;
}

/* ---- failures -------------------------------------------------------------------------------- */

int hpsctl_fail(struct hpsctl *ctl, const struct hps_error *err)
{
    (void)fprintf(stderr, "hpsctl: %s\n", err->text);
    if (err->status == HPS_DEADLINE) {
        return HPSCTL_DEADLINE;
    }
    if (err->status != HPS_UNAVAILABLE || ctl->client == NULL) {
        return err->status == HPS_UNAVAILABLE ? HPSCTL_UNREACHABLE : HPSCTL_REFUSED;
    }
    /* A server that answers said so itself; else it went away meanwhile. */
    struct hps_error ignored = {0};
    bool serving;
    hps_status status = hps_client_health(ctl->client, "", TIMEOUT_US_DEFAULT, &serving, &ignored);
    return status == HPS_UNAVAILABLE || status == HPS_DEADLINE ? HPSCTL_UNREACHABLE
                                                               : HPSCTL_REFUSED;
}

static void print_usage(FILE *out, const struct hpsctl_verb *verb)
{
    (void)fprintf(out, "usage: hpsctl %s%s%s [option...]\n", verb->name,
                  verb->words[0] == '\0' ? "" : " ", verb->words);
}

int hpsctl_usage(const struct hpsctl *ctl, const char *fmt, ...)
{
    va_list args;

    (void)fputs("hpsctl: ", stderr);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fputc('\n', stderr);
    if (ctl->verb != NULL) {
        print_usage(stderr, ctl->verb);
        (void)fprintf(stderr, "`hpsctl %s --help` says more\n", ctl->verb->name);
    }
    return HPSCTL_USAGE;
}

bool hpsctl_version_arg(const struct hpsctl *ctl, const char *text, int64_t *out_version)
{
    if (hps_args_i64(text, out_version) && *out_version > 0) {
        return true;
    }
    (void)hpsctl_usage(ctl, "\"%s\" is no version number (a whole number from 1)", text);
    return false;
}

bool hpsctl_key_arg(const struct hpsctl *ctl, const char *text, uint64_t *out_key)
{
    int64_t signed_key;

    if (hps_args_i64(text, &signed_key)) {
        *out_key = (uint64_t)signed_key;
        return true;
    }
    if (hps_args_u64(text, out_key)) {
        return true;
    }
    (void)hpsctl_usage(ctl, "\"%s\" is no key (a 64-bit integer)", text);
    return false;
}

bool hpsctl_word_arg(const struct hpsctl *ctl, const char *word, const char *const *words)
{
    for (const char *const *at = words; *at != NULL; at++) {
        if (strcmp(*at, word) == 0) {
            return true;
        }
    }
    const char *near = hps_args_suggest(word, words);
    if (near != NULL) {
        (void)hpsctl_usage(ctl, "unknown word \"%s\"; did you mean \"%s\"?", word, near);
    } else {
        (void)hpsctl_usage(ctl, "unknown word \"%s\"; expected %s", word, ctl->verb->words);
    }
    return false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

int hpsctl_call(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *reply_type, void *out_reply)
{
    struct hps_error err = {0};
    ProtobufCMessage *reply = NULL;
    char path[96];

    (void)snprintf(path, sizeof(path), "/hps.v1.Admin/%s", method);
    hps_status status = hps_client_call_message(ctl->client, path, request, reply_type,
                                                ctl->timeout_us, &reply, &err);
    if (status != HPS_OK) {
        return hpsctl_fail(ctl, &err);
    }
    *(void **)out_reply = reply;
    return HPSCTL_OK;
}

int hpsctl_call_print(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply_type,
                      int (*print)(struct hpsctl *ctl, const void *reply))
{
    ProtobufCMessage *reply = NULL;
    int code = hpsctl_call(ctl, method, request, reply_type, &reply);

    if (code != HPSCTL_OK) {
        return code;
    }
    if (hpsctl_json(ctl)) {
        struct hps_buf buf;
        hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
        code = hpsctl_print_buf(&buf, hps_message_json(reply, &buf));
    } else {
        code = print(ctl, reply);
    }
    hps_message_free(reply);
    return code;
}

int hpsctl_open(struct hpsctl *ctl)
{
    struct hps_error err = {0};

    ctl->connect.connect_timeout_us = ctl->timeout_us;
    hps_status status = hps_client_open(&ctl->connect, &ctl->client, &err);
    if (status == HPS_OK) {
        return HPSCTL_OK;
    }
    if (status == HPS_UNAVAILABLE) {
        (void)fprintf(stderr, "hpsctl: %s (is hpsd running? set --addr)\n", err.text);
        return HPSCTL_UNREACHABLE;
    }
    (void)fprintf(stderr, "hpsctl: %s\n", err.text);
    return status == HPS_DEADLINE          ? HPSCTL_DEADLINE
           : status == HPS_UNAUTHENTICATED ? HPSCTL_REFUSED
                                           : HPSCTL_USAGE;
}

/* ---- command line ---------------------------------------------------------------------------- */

static int print_help(const struct hpsctl_verb *verb)
{
    if (verb != NULL) {
        print_usage(stdout, verb);
        printf("\n%s\n", verb->summary);
        if (verb->args != NULL) {
            printf("\n");
            hps_args_print(verb->args);
        }
    } else {
        printf("usage: hpsctl [option...] VERB [word...] [option...]\n\n");
        for (verb = hpsctl_verbs; verb->name != NULL; verb++) {
            char left[80];
            (void)snprintf(left, sizeof(left), "%s %s", verb->name, verb->words);
            printf("  %-32s %s\n", left, verb->summary);
        }
    }
    printf("\noptions of every verb:\n");
    hps_args_print(global_args);
    printf("\nexit codes: 0 ok, 1 refused by the server, 2 usage, 3 unreachable, 4 deadline,\n"
           "            5 negative answer (not ready, key not found, never visible)\n");
    return fflush(stdout) == 0 ? HPSCTL_OK : HPSCTL_REFUSED;
}

static const struct hpsctl_verb *find_verb(const char *name)
{
    const char *names[VERBS_MAX + 1] = {NULL};
    unsigned n = 0;

    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->name != NULL && n < VERBS_MAX;
         verb++) {
        if (strcmp(verb->name, name) == 0) {
            return verb;
        }
        names[n++] = verb->name;
    }
    const char *near = hps_args_suggest(name, names);
    if (near != NULL) {
        (void)fprintf(stderr, "hpsctl: unknown verb \"%s\"; did you mean \"%s\"?\n", name, near);
    } else {
        (void)fprintf(stderr, "hpsctl: unknown verb \"%s\"; `hpsctl --help` lists them\n", name);
    }
    return NULL;
}

static int run_verb(struct hpsctl *ctl)
{
    const struct hpsctl_verb *verb = ctl->verb;

    if (ctl->n_words < verb->n_words_min || ctl->n_words > verb->n_words_max) {
        return hpsctl_usage(ctl, "%s: too %s words", verb->name,
                            ctl->n_words < verb->n_words_min ? "few" : "many");
    }
    bool long_one = strcmp(verb->name, "load") == 0 || strcmp(verb->name, "activate") == 0 ||
                    strcmp(verb->name, "snapshot") == 0;
    if (ctl->timeout_us == 0 && !long_one) {
        ctl->timeout_us = TIMEOUT_US_DEFAULT;
    }
    int code = verb->offline ? HPSCTL_OK : hpsctl_open(ctl);
    if (code == HPSCTL_OK) {
        code = verb->run(ctl);
        if (fflush(stdout) != 0 && code == HPSCTL_OK) {
            (void)fprintf(stderr, "hpsctl: standard output cannot be written\n");
            code = HPSCTL_REFUSED;
        }
    }
    hps_client_close(ctl->client);
    return code;
}

static int bad_command_line(const struct hpsctl *ctl, const struct hps_error *err)
{
    return hpsctl_usage(ctl, "%s", err->text);
}

int main(int argc, char **argv)
{
    struct hps_error err = {0};
    const struct hps_arg *tables[ARG_TABLES_MAX] = {global_args, NULL};
    const char *from_environment = getenv("HPSD_ADDR");
    int n = 0;

    state.connect.address = from_environment != NULL && from_environment[0] != '\0'
                                ? from_environment
                                : ADDRESS_DEFAULT;
    argc -= argc > 0;
    argv++;
    if (hps_args_parse(tables, 1, true, argc, argv, &n, &err) != HPS_OK) {
        return bad_command_line(&state, &err);
    }
    if (n == argc) {
        if (state.help) {
            return print_help(NULL);
        }
        (void)fprintf(stderr, "hpsctl: no verb; `hpsctl --help` lists them\n");
        return HPSCTL_USAGE;
    }
    const struct hpsctl_verb *verb = find_verb(argv[n]);
    if (verb == NULL) {
        return HPSCTL_USAGE;
    }
    state.verb = verb;
    tables[1] = verb->args;
    state.words = argv + n + 1;
    if (hps_args_parse(tables, ARG_TABLES_MAX, false, argc - n - 1, state.words, &state.n_words,
                       &err) != HPS_OK) {
        return bad_command_line(&state, &err);
    }
    return state.help ? print_help(verb) : run_verb(&state);
}
