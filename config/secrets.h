/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of a configuration that hold secrets: keys, tokens, passwords. Any thread.
 */
#ifndef HPS_CONFIG_SECRETS_H
#define HPS_CONFIG_SECRETS_H

#include "config/config.h"

enum { HPS_SECRETS_MAX = 8 };

struct hps_secret {
    const char *option; /* option with the file name; "": the configuration file itself */
    const char *path;   /* borrowed from the configuration */
    bool gives_rights;  /* users who can write to it can give themselves roles */
};

/* List the secret files of a configuration. Returns their number. */
size_t hps_secrets_of(const struct hps_config *config,
                      struct hps_secret out_secrets[HPS_SECRETS_MAX]);
/* Whether the value of a property of update_source ("NAME=VALUE") is secret and must not be
 * printed. */
bool hps_secrets_is_property(const char *property);
/* The same for the value at a path of the configuration ("update_source.properties[0]"), of any
 * JSON type. */
bool hps_secrets_is_path(const char *path);
/* Add a note for each file that every user of this host can read. Likewise for each file with
 * gives_rights that users other than its owner can write to. error NO_MEMORY */
hps_status hps_secrets_note(const struct hps_config *config, struct hps_notes *notes)
    HPS_MUST_CHECK;
/* List the options with files in `directory` (credentials of systemd; may be NULL), separated by
 * commas and cut to size. systemd copies credentials at start, so the originals may have changed
 * since. Returns the number of options. */
size_t hps_secrets_below(const struct hps_config *config, const char *directory, char *out_options,
                         size_t size);

#endif
