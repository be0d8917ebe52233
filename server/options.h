/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of hpsd. Main thread.
 */
#ifndef HPS_SERVER_OPTIONS_H
#define HPS_SERVER_OPTIONS_H

#include "base/args.h"
#include "config/config.h"

struct hps_options {
    const char *config_file;    /* NULL: started with --table */
    struct hps_arg_list tables; /* "NAME=PATH" */
    struct hps_arg_list listen;
    struct hps_arg_list kserve_listen;
    struct hps_config_flags flags;
    /* --help and --version; if one is given, the other fields are not checked. */
    struct hps_args args;
};

/* Parse the command line. Texts in *out_options point into argv. Prints nothing.
 * error   INVALID: the text names the wrong argument */
hps_status hps_options_parse(int argc, char **argv, struct hps_options *out_options,
                             struct hps_error *err) HPS_MUST_CHECK;
/* The description of the command line, for hps_args_answer and hps_args_wrong. */
const struct hps_program *hps_options_program(void);

#endif
