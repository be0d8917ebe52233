/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files of a configuration hold secrets: keys, tokens, passwords. Any thread.
 */
#ifndef HPS_CONFIG_SECRETS_H
#define HPS_CONFIG_SECRETS_H

#include "config/config.h"

enum { HPS_SECRETS_MAX = 8 };

struct hps_secret {
    const char *option; /* that names the file; "" : the configuration itself */
    const char *path;   /* borrowed from the configuration */
    bool gives_rights;  /* whoever writes to it says who may do what */
};

/* How many there are. */
size_t hps_secrets_of(const struct hps_config *config,
                      struct hps_secret out_secrets[HPS_SECRETS_MAX]);
/* Must the value of a property of update_source ("NAME=VALUE") stay out of output and messages? */
bool hps_secrets_is_property(const char *property);
/* The same for the value at a path of the configuration ("update_source.properties[0]"), whatever
 * its JSON type is. */
bool hps_secrets_is_path(const char *path);
/* Note each that every user of this host can read; and each that gives rights, and that others than
 * its owner can write to. error NO_MEMORY */
hps_status hps_secrets_note(const struct hps_config *config, struct hps_notes *notes)
    HPS_MUST_CHECK;
/* The options whose files are in `directory` (systemd's credentials; NULL: there are none),
 * separated by ", "; cut to size. They are copies of a start: what they were copied from may be
 * another by now. Returns how many. */
size_t hps_secrets_below(const struct hps_config *config, const char *directory, char *out_options,
                         size_t size);

#endif
