/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the tools: exit codes, the address of the server and its options, the progress line on
 * a terminal, and interrupts. Main thread.
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
#include "client/hpsd.h"

enum tool_exit {
    TOOL_OK = 0,
    TOOL_REFUSED = 1, /* the server rejected the call, or another error occurred */
    TOOL_USAGE = 2,
    TOOL_UNREACHABLE = 3,
    TOOL_DEADLINE = 4,
    TOOL_NEGATIVE = 5, /* the call succeeded, with a negative result: not ready, not found */
    TOOL_INTERRUPTED = 130,
};

#define TOOL_EXIT_CODES \
    "0 ok   1 rejected by the server, or failed   2 usage\n3 unreachable   4 deadline"

/* The exit code after a failed call. */
int tool_exit_of(hps_status status);

/* ---- address of the server ------------------------------------------------------------------- */

#define TOOL_ADMIN_ADDRESS "unix:/run/hpsd/admin.sock"

/* The address of the admin listener: $HPSD_ADDR, or TOOL_ADMIN_ADDRESS if it is unset or empty. */
const char *tool_admin_address(void);

/* Checks that `address` has a form to which a tool can connect. INVALID: `err` names the option and
 * the expected form. */
hps_status tool_address_check(const char *option, const char *address, struct hps_error *err)
    HPS_MUST_CHECK;

/* How a tool connects to the server. The options tool_connect_args, which all tools share, set the
 * fields for the token and for TLS. Each tool sets the other fields. */
extern struct hps_client_options tool_connect;
extern const struct hps_arg tool_connect_args[];

/* The same for a client of client/hpsd.h, with the address of `from`. */
struct hpsd_options tool_hpsd_options(const struct hps_client_options *from);

/* ---- progress -------------------------------------------------------------------------------- */

/* A line of text on a terminal that is redrawn in place. */
struct tool_progress {
    FILE *out;         /* NULL: progress is not shown */
    uint64_t shown_us; /* when tool_progress_due last returned true; 0: never */
    size_t columns;    /* length of the line on the terminal; 0: no line */
};

/* Whether the caller should draw the line now: progress is shown, and this function has not
 * returned true in the last `every_us`. */
bool tool_progress_due(struct tool_progress *progress, uint64_t every_us);
void tool_progress_draw(struct tool_progress *progress, const char *fmt, ...) HPS_PRINTF(2, 3);
/* Ends the line, so that later output begins on a new one. */
void tool_progress_end(struct tool_progress *progress);

/* ---- interrupts ------------------------------------------------------------------------------ */

/* From now on, SIGINT (and SIGTERM, if `term`) is recorded instead of ending the program. A second
 * signal of the same kind ends the program. */
void tool_interrupts_note(bool term);
/* The signal that was recorded last; 0: no signal. Any thread. */
int tool_interrupt(void);
/* Whether a signal was recorded. Any thread. */
bool tool_interrupted(void);

#endif
