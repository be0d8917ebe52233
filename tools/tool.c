/* SPDX-License-Identifier: Apache-2.0
 *
 * Exit codes, progress and interrupts of the tools. Main thread.
 */
#include "tools/tool.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/text.h"
#include "net/addr.h"

enum { PROGRESS_BYTES_MAX = 512 };

int tool_exit_of(hps_status status)
{
    HPS_ASSERT(status != HPS_OK);
    return status == HPS_UNAVAILABLE ? TOOL_UNREACHABLE
           : status == HPS_DEADLINE  ? TOOL_DEADLINE
                                     : TOOL_REFUSED;
}

const char *tool_admin_address(void)
{
    const char *address = getenv("HPSD_ADDR");

    return address != NULL && address[0] != '\0' ? address : TOOL_ADMIN_ADDRESS;
}

hps_status tool_address_check(const char *option, const char *address, struct hps_error *err)
{
    struct hps_addr addr;
    hps_status status = hps_addr_parse_peer(address, &addr, err);

    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "%s", option);
}

struct hps_client_options tool_connect;

const struct hps_arg tool_connect_args[] = {
    {"token-file", 0, HPS_ARG_TEXT, "FILE", &tool_connect.token_file,
     "file whose first line is the bearer token"},
    {"plaintext", 0, HPS_ARG_FLAG, NULL, &tool_connect.plaintext,
     "send the token without TLS also to other hosts"},
    {"tls", 0, HPS_ARG_FLAG, NULL, &tool_connect.tls,
     "use TLS with the CA certificates of the system"},
    {"tls-ca", 0, HPS_ARG_TEXT, "FILE", &tool_connect.tls_ca,
     "use TLS with the CA certificates of this file (PEM)"},
    {"tls-cert", 0, HPS_ARG_TEXT, "FILE", &tool_connect.tls_cert,
     "certificate of this client (PEM)"},
    {"tls-key", 0, HPS_ARG_TEXT, "FILE", &tool_connect.tls_key, "private key of this client (PEM)"},
    HPS_ARGS_END,
};

struct hpsd_options tool_hpsd_options(const struct hps_client_options *from)
{
    return (struct hpsd_options){
        .addresses = from->address,
        .token_file = from->token_file,
        .token_in_clear = from->plaintext,
        .tls = from->tls,
        .tls_ca = from->tls_ca,
        .tls_cert = from->tls_cert,
        .tls_key = from->tls_key,
        .single_attempt = true,
    };
}

/* ---- progress -------------------------------------------------------------------------------- */

bool tool_progress_due(struct tool_progress *progress, uint64_t every_us)
{
    HPS_ASSERT(progress->shown_us <= hps_clock_us());
    uint64_t now_us = hps_clock_us();

    if (progress->out == NULL ||
        (progress->shown_us != 0 && now_us - progress->shown_us < every_us)) {
        return false;
    }
    progress->shown_us = now_us;
    return true;
}

void tool_progress_draw(struct tool_progress *progress, const char *fmt, ...)
{
    char raw[PROGRESS_BYTES_MAX], line[PROGRESS_BYTES_MAX];
    va_list args;

    if (progress->out == NULL) {
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(raw, sizeof(raw), fmt, args);
    va_end(args);
    size_t columns = hps_text_plain(raw, strlen(raw), line, sizeof(line));
    (void)fprintf(progress->out, "\r%s", line);
    if (columns < progress->columns) { /* erases the rest of a longer line */
        (void)fprintf(progress->out, "%*s", (int)(progress->columns - columns), "");
    }
    progress->columns = columns;
    (void)fflush(progress->out);
}

void tool_progress_end(struct tool_progress *progress)
{
    if (progress->out != NULL && progress->columns > 0) {
        (void)fputc('\n', progress->out);
        progress->columns = 0;
    }
}

/* ---- interrupts ------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupt;

static void note(int number)
{
    interrupt = number;
}

void tool_interrupts_note(bool term)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)SA_RESETHAND};

    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL); /* cannot fail for these */
    if (term) {
        (void)sigaction(SIGTERM, &action, NULL);
    }
}

int tool_interrupt(void)
{
    return interrupt;
}

bool tool_interrupted(void)
{
    return interrupt != 0;
}
