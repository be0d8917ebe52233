/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of hpsd. Main thread.
 */
#ifndef HPS_SERVER_OPTIONS_H
#define HPS_SERVER_OPTIONS_H

#include "config/config.h"

enum { HPS_OPTION_REPEAT_MAX = 64 };

struct hps_options {
    const char *config_file; /* NULL: --table */
    const char *export_dir;  /* NULL: serve */
    const char *tables[HPS_OPTION_REPEAT_MAX];
    size_t n_tables;
    const char *listen[HPS_OPTION_REPEAT_MAX];
    struct hps_config_flags flags;
    bool check;
    bool version;
    bool help;
};

/* error   INVALID: names the argument and what was expected; nothing is printed */
hps_status hps_options_parse(int argc, char **argv, struct hps_options *out_options,
                             struct hps_error *err) HPS_MUST_CHECK;
extern const char hps_options_help[];

#endif
