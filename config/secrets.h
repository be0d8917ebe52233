/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the files of a configuration that contain secrets: keys, tokens, passwords. Any thread.
 */
#ifndef HPS_CONFIG_SECRETS_H
#define HPS_CONFIG_SECRETS_H

#include "config/config.h"

enum { HPS_SECRETS_MAX = 8 };

struct hps_secret {
    const char *option; /* option that names the file; "": `path` is the configuration file */
    const char *path;   /* of the file; borrowed from the configuration */
    /* The file defines roles or tokens, so a user who can write to it can obtain any role. */
    bool gives_rights;
};

/* List the secret files of a configuration. Returns their number. */
size_t hps_secrets_of(const struct hps_config *config,
                      struct hps_secret out_secrets[HPS_SECRETS_MAX]);
/* Whether the value of a property of update_source ("NAME=VALUE") may be secret and must not be
 * printed. Decides by the name. */
bool hps_secrets_is_property(const char *property);
/* Whether the value at a path of the configuration ("update_source.properties[0]") may be secret
 * and must not be printed. Decides by the path, for values of any JSON type. */
bool hps_secrets_is_path(const char *path);
/* Add a warning for each secret file that every user of this host can read. Also add a warning for
 * each file with gives_rights that users other than its owner can write. NO_MEMORY: no memory for a
 * warning. */
hps_status hps_secrets_note(const struct hps_config *config, struct hps_notes *notes)
    HPS_MUST_CHECK;
/* List the options whose secret files are in `directory`, separated by commas and truncated to
 * `size`. Returns the number of these options; 0 if `directory` is NULL. `directory` is systemd's
 * directory of credentials. systemd copies the files into it when the daemon starts, so the
 * original files may be newer. */
size_t hps_secrets_below(const struct hps_config *config, const char *directory, char *out_options,
                         size_t size);

#endif
