/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tools share: exit codes, the address of the server and how it is given, the line of
 * progress on a terminal, and what Ctrl-C does. Main thread.
 */
#ifndef HPS_TOOLS_TOOL_H
#define HPS_TOOLS_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/args.h"
#include "base/status.h"
#include "client/client.h"

enum tool_exit {
    TOOL_OK = 0,
    TOOL_REFUSED = 1, /* by the server, or it failed here */
    TOOL_USAGE = 2,
    TOOL_UNREACHABLE = 3,
    TOOL_DEADLINE = 4,
    TOOL_NEGATIVE = 5, /* asked and answered: no */
    TOOL_INTERRUPTED = 130,
};

#define TOOL_EXIT_CODES \
    "0 ok   1 refused by the server, or failed   2 usage\n3 unreachable   4 deadline"

/* What to exit with when a call has failed. */
int tool_exit_of(hps_status status);

/* ---- where the server is --------------------------------------------------------------------- */

#define TOOL_ADMIN_ADDRESS "unix:/run/hpsd/admin.sock"

/* $HPSD_ADDR, or the admin listener of the service on this machine. */
const char *tool_admin_address(void);

/* Can a tool connect to an address of this form? INVALID names the option and the expected form. */
hps_status tool_address_check(const char *option, const char *address, struct hps_error *err)
    HPS_MUST_CHECK;

/* How a tool connects: its address, and what the shared options say of tokens and TLS. */
extern struct hps_client_options tool_connect;
extern const struct hps_arg tool_connect_args[];

/* ---- progress -------------------------------------------------------------------------------- */

/* A line that is drawn over the one before. */
struct tool_progress {
    FILE *out;         /* NULL: nothing is shown */
    uint64_t shown_us; /* when it was drawn last; 0: never */
    size_t columns;    /* of the line that is shown; 0: none */
};

/* Is it shown and `every_us` or more since it was drawn? The first time it always is. */
bool tool_progress_due(struct tool_progress *progress, uint64_t every_us);
void tool_progress_draw(struct tool_progress *progress, const char *fmt, ...) HPS_PRINTF(2, 3);
/* What is printed next begins on a line of its own. */
void tool_progress_end(struct tool_progress *progress);

/* ---- interrupts ------------------------------------------------------------------------------ */

/* From now on the first SIGINT (and SIGTERM, if `term`) is noted; a second one ends the program. */
void tool_interrupts_note(bool term);
/* The signal that was noted; 0: none. Any thread. */
int tool_interrupt(void);
/* Was there one? For whoever asks now and then whether to stop. Any thread. */
bool tool_interrupted(void);

#endif
