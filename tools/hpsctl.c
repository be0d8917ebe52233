/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl: operates a running hpsd through its admin socket. This file runs verbs and makes their
 * calls; hpsctl_verbs.c lists them. Main thread.
 */
#include "tools/hpsctl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "proto/json.h"

enum { VERBS_MAX = 64 };

#define TIMEOUT_US_DEFAULT (UINT64_C(10) * 1000 * 1000)

static struct hpsctl state = {.output = "table"};

const struct hps_arg hpsctl_global_args[] = {
    {"addr", 0, HPS_ARG_TEXT, "ADDR", &tool_connect.address,
     "admin listener of the server, unix:PATH or HOST:PORT (default $HPSD_ADDR, "
     "else " TOOL_ADMIN_ADDRESS ")"},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &state.timeout_us,
     "deadline of a call (default 10; none for load, activate and snapshot)"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &state.output, "output format (default table)"},
    HPS_ARGS_END,
};

static const struct hps_command *commands[VERBS_MAX + 1]; /* from hpsctl_verbs; set by main() */

static const struct hps_program program = {
    .self =
        {
            .name = "hpsctl",
            .words = "VERB [WORD...]",
            .summary = "Operate a running hpsd through its admin listener.",
            .args = hpsctl_global_args,
            .shared_args = tool_connect_args,
            .example = "hpsctl status\n"
                       "hpsctl --addr unix:/tmp/hpsd/admin.sock lookup default items 0 1 2",
        },
    .verbs = commands,
    .exit_codes = TOOL_EXIT_CODES "\n"
                                  "5 not ready, key not found, or will not become visible   "
                                  "130 interrupted",
};

/* ---- failures -------------------------------------------------------------------------------- */

int hpsctl_fail(struct hpsctl *ctl, const struct hps_error *err)
{
    HPS_ASSERT(err->status != HPS_OK);
    (void)fprintf(stderr, "hpsctl: %s\n", err->text);
    if (err->status != HPS_UNAVAILABLE || ctl->client == NULL) {
        return tool_exit_of(err->status);
    }
    /* If the server answers, the error came from it. Otherwise the server has stopped since. */
    struct hps_error ignored = {0};
    bool serving;
    hps_status status = hps_client_health(ctl->client, "", TIMEOUT_US_DEFAULT, &serving, &ignored);
    return status == HPS_UNAVAILABLE || status == HPS_DEADLINE ? TOOL_UNREACHABLE : TOOL_REFUSED;
}

int hpsctl_usage(const struct hpsctl *ctl, const char *fmt, ...)
{
    char text[sizeof(((struct hps_error *)0)->text)];
    va_list args;

    HPS_ASSERT(ctl->verb != NULL);
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return hps_args_wrong(&program, &ctl->verb->command, "%s", text);
}

int hpsctl_no_memory(void)
{
    (void)fprintf(stderr, "hpsctl: out of memory\n");
    return TOOL_REFUSED;
}

bool hpsctl_version_arg(const struct hpsctl *ctl, const char *text, int64_t *out_version)
{
    if (hps_args_i64(text, out_version) && *out_version > 0) {
        return true;
    }
    (void)hpsctl_usage(ctl, "version \"%s\": expected a whole number from 1", text);
    return false;
}

bool hpsctl_key_arg(const struct hpsctl *ctl, const char *text, uint64_t *out_key)
{
    if (hps_args_key(text, out_key)) {
        return true;
    }
    (void)hpsctl_usage(ctl, "key \"%s\": expected a 64-bit integer", text);
    return false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

int hpsctl_call_raw(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, void *out_reply)
{
    struct hps_error err = {0};
    ProtobufCMessage *reply = NULL;
    char path[96];
    int code = hpsctl_open(ctl);

    if (code != TOOL_OK) {
        return code;
    }
    (void)snprintf(path, sizeof(path), "/hps.v1.Admin/%s", method);
    hps_status status = hps_client_call_message(ctl->client, path, request, reply_type,
                                                ctl->timeout_us, &reply, &err);
    if (status != HPS_OK) {
        return hpsctl_fail(ctl, &err);
    }
    *(void **)out_reply = reply;
    return TOOL_OK;
}

int hpsctl_call(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *reply_type, void *out_reply)
{
    ProtobufCMessage *reply = NULL;
    int code = hpsctl_call_raw(ctl, method, request, reply_type, &reply);

    if (code == TOOL_OK && !hpsctl_json(ctl) && hps_message_plain(reply) != HPS_OK) {
        hps_message_free(reply);
        code = hpsctl_no_memory();
    }
    if (code == TOOL_OK) {
        *(void **)out_reply = reply;
    }
    return code;
}

int hpsctl_print_json(const ProtobufCMessage *message)
{
    struct hps_buf buf;

    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_message_json(message, &buf);
    return hpsctl_print_buf(&buf);
}

int hpsctl_call_print(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply_type,
                      int (*print)(struct hpsctl *ctl, const void *reply))
{
    ProtobufCMessage *reply = NULL;
    int code = hpsctl_call(ctl, method, request, reply_type, &reply);

    if (code != TOOL_OK) {
        return code;
    }
    code = hpsctl_json(ctl) ? hpsctl_print_json(reply) : print(ctl, reply);
    hps_message_free(reply);
    return code;
}

int hpsctl_open_failed(hps_status status, const char *text)
{
    (void)fprintf(
        stderr, "hpsctl: %s%s\n", text,
        status == HPS_UNAVAILABLE
            ? "; is hpsd running? --addr or HPSD_ADDR is the address of its admin listener, "
              "by default unix:STATE_DIR/admin.sock"
            : "");
    return status == HPS_UNAVAILABLE || status == HPS_DEADLINE ? tool_exit_of(status)
           : status == HPS_UNAUTHENTICATED                     ? TOOL_REFUSED
                                                               : TOOL_USAGE;
}

int hpsctl_open(struct hpsctl *ctl)
{
    struct hps_error err = {0};

    if (ctl->client != NULL) {
        return TOOL_OK;
    }
    ctl->connect.connect_timeout_us = ctl->timeout_us;
    hps_status status = tool_address_check("--addr (or $HPSD_ADDR)", ctl->connect.address, &err);
    if (status == HPS_OK) {
        status = hps_client_open(&ctl->connect, &ctl->client, &err);
    }
    if (status == HPS_OK) {
        return TOOL_OK;
    }
    return hpsctl_open_failed(status, err.text);
}

/* ---- command line ---------------------------------------------------------------------------- */

static int run_verb(struct hpsctl *ctl)
{
    const struct hpsctl_verb *verb = ctl->verb;

    if (ctl->timeout_us == 0 && !verb->lasts) {
        ctl->timeout_us = TIMEOUT_US_DEFAULT;
    }
    int code = verb->run(ctl);
    if (fflush(stdout) != 0 && code == TOOL_OK) {
        (void)fprintf(stderr, "hpsctl: cannot write to standard output\n");
        code = TOOL_REFUSED;
    }
    hps_client_close(ctl->client);
    return code;
}

int main(int argc, char **argv)
{
    struct hps_args args;
    int code;

    for (size_t i = 0; hpsctl_verbs[i].command.name != NULL; i++) {
        HPS_ASSERT(i < VERBS_MAX);
        commands[i] = &hpsctl_verbs[i].command;
    }
    tool_connect.address = tool_admin_address();
    if (!hps_args_start(&program, argc, argv, &args, &code)) {
        return code;
    }
    state.connect = tool_connect;
    state.verb = &hpsctl_verbs[args.verb_index];
    state.words = args.words;
    state.n_words = args.n_words;
    state.choice = args.choice;
    return run_verb(&state);
}
