/* SPDX-License-Identifier: Apache-2.0
 *
 * Secret files, and their permissions. Threads: see config/secrets.h.
 */
#include "config/secrets.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "config/options.h"

bool hps_secrets_is_property(const char *property)
{
    /* "pas" also matches a misspelt "password", which an error message would print. */
    static const char *const words[] = {"pas", "pwd", "secret", "jaas", "oauthbearer", "key.pem"};
    /* The last '=': "client.id=a,sasl.password=b" has two properties in one. */
    const char *equals = strrchr(property, '=');
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *found = strcasestr(property, words[i]);
        if (found != NULL && (equals == NULL || found < equals)) {
            return true;
        }
    }
    return false;
}

bool hps_secrets_is_path(const char *path)
{
    /* Match every property and token: in a malformed one, name and value look the same. */
    return hps_secrets_is_property(path) || strstr(path, "properties") != NULL ||
           strstr(path, "token") != NULL;
}

/* Whether the configuration file itself has a secret. */
static bool file_has_secret(const struct hps_config *config)
{
    bool has = config->volatile_db.password[0] != '\0';
    for (size_t i = 0; i < config->update_source.properties.n && !has; i++) {
        has = hps_secrets_is_property(config->update_source.properties.items[i]);
    }
    return has && !config->from_tables;
}

size_t hps_secrets_of(const struct hps_config *config,
                      struct hps_secret out_secrets[HPS_SECRETS_MAX])
{
    const struct hps_secret all[] = {
        {"server.tls.key", config->server.tls.key, false},
        {"server.admin_token_file", config->server.admin_token_file, true},
        /* digests allow guesses of a weak token */
        {"server.access", config->server.access, true},
        {"volatile_db.tls_client_key", config->volatile_db.tls_client_key, false},
        {"", file_has_secret(config) ? config->file : "", false},
    };
    size_t n = 0;
    _Static_assert(sizeof(all) / sizeof(all[0]) <= HPS_SECRETS_MAX, "there is room for all");
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i].path[0] != '\0') {
            out_secrets[n++] = all[i];
        }
    }
    return n;
}

static hps_status note_readable(const struct hps_config *config, const struct hps_secret *secret,
                                mode_t mode, struct hps_notes *notes)
{
    if ((mode & S_IROTH) == 0) {
        return HPS_OK;
    }
    return hps_notes_add(notes, HPS_NOTE_WARNING,
                         "%s: %s%s%s: a secret that every user of this host can read (mode "
                         "%04o); chmod o= %s",
                         config->file, secret->option, secret->option[0] != '\0' ? ": " : "",
                         secret->path, (unsigned)mode & 07777, secret->path);
}

static hps_status note_writable(const struct hps_config *config, const struct hps_secret *secret,
                                mode_t mode, struct hps_notes *notes)
{
    if (!secret->gives_rights || (mode & (S_IWGRP | S_IWOTH)) == 0) {
        return HPS_OK;
    }
    return hps_notes_add(notes, HPS_NOTE_WARNING,
                         "%s: %s: %s: %s can write to it, and so give themselves any role (mode "
                         "%04o); chmod go-w %s",
                         config->file, secret->option, secret->path,
                         (mode & S_IWOTH) != 0 ? "every user of this host" : "its group",
                         (unsigned)mode & 07777, secret->path);
}

hps_status hps_secrets_note(const struct hps_config *config, struct hps_notes *notes)
{
    struct hps_secret secrets[HPS_SECRETS_MAX];
    size_t n = hps_secrets_of(config, secrets);
    hps_status status = HPS_OK;
    HPS_ASSERT(n <= HPS_SECRETS_MAX);
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        struct stat info;
        /* If stat fails, the code that reads the file reports it. */
        if (stat(secrets[i].path, &info) == 0) {
            status = note_readable(config, &secrets[i], info.st_mode, notes);
            status =
                status == HPS_OK ? note_writable(config, &secrets[i], info.st_mode, notes) : status;
        }
    }
    return status;
}

size_t hps_secrets_below(const struct hps_config *config, const char *directory, char *out_options,
                         size_t size)
{
    struct hps_secret secrets[HPS_SECRETS_MAX];
    size_t n = hps_secrets_of(config, secrets);
    size_t n_below = 0;
    size_t dir_size = directory != NULL ? strlen(directory) : 0;
    size_t used = 0;
    out_options[0] = '\0';
    for (size_t i = 0; i < n && dir_size > 0; i++) {
        const char *path = secrets[i].path;
        if (strncmp(path, directory, dir_size) != 0 || path[dir_size] != '/') {
            continue;
        }
        int more = snprintf(out_options + used, size - used, "%s%s", n_below > 0 ? ", " : "",
                            secrets[i].option[0] != '\0' ? secrets[i].option : path);
        used += more > 0 && (size_t)more < size - used ? (size_t)more : 0;
        n_below++;
    }
    return n_below;
}
