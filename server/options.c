/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments into struct hps_options. `--name VALUE` and `--name=VALUE` are the same. Main thread.
 */
#include "server/options.h"

#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "base/text.h"

const char hps_options_help[] =
    "usage: hpsd --config FILE [OPTION ...]\n"
    "       hpsd --table NAME=PATH [--table ...] --state-dir DIR [OPTION ...]\n"
    "       hpsd --config FILE --export DIR\n"
    "\n"
    "Serves embedding tables over gRPC from GPU and host memory, backed by Redis and RocksDB.\n"
    "\n"
    "  --config FILE          ps.json of HPS, or with hpsd's own keys (docs/config.md)\n"
    "  --table NAME=PATH      serve a .npy file or a table's directory as model \"default\"\n"
    "  --listen ADDR          gRPC: host:port (port 0: any free) or unix:PATH; repeatable\n"
    "                         [127.0.0.1:8601]\n"
    "  --http-listen ADDR     /metrics, /healthz, /readyz [127.0.0.1:8602]\n"
    "  --admin-listen ADDR    for hpsctl [unix:<state-dir>/admin.sock]\n"
    "  --state-dir DIR        where the store and the admin socket live\n"
    "  --check                validate the configuration, the model files that it names and Kafka\n"
    "                         properties, print what it means, and exit; opens no store\n"
    "  --export DIR           with redis_layout \"hps\": write all rows that HPS has in Redis to "
    "files\n"
    "                         that sparse_files can name, print their names, and exit\n"
    "  --log-level LEVEL      debug, info, warn, error [info]\n"
    "  --log-format FORMAT    logfmt, json [logfmt]\n"
    "  --version              print the version and exit\n"
    "  --help                 print this and exit\n"
    "\n"
    "Signals: TERM, INT drain (a second one: at once); QUIT at once; HUP reload; USR1 state to the "
    "log.\n"
    "Exit status: 0 drained, or done; 1 fatal; 2 usage or configuration; 3 address or lock taken; "
    "4 store\n"
    "unusable or of a newer format.\n";

enum option_kind { FLAG, ONE, MANY };

struct option {
    const char *name;
    enum option_kind kind;
    size_t offset; /* of a bool (FLAG), a const char * (ONE) or an array of them (MANY) */
    size_t count;  /* MANY: offset of the number */
};

#define AT(field) offsetof(struct hps_options, field)

static const struct option options[] = {
    {"config", ONE, AT(config_file), 0},
    {"table", MANY, AT(tables), AT(n_tables)},
    {"listen", MANY, AT(listen), AT(flags.n_listen)},
    {"http-listen", ONE, AT(flags.http_listen), 0},
    {"admin-listen", ONE, AT(flags.admin_listen), 0},
    {"state-dir", ONE, AT(flags.state_dir), 0},
    {"export", ONE, AT(export_dir), 0},
    {"log-level", ONE, AT(flags.log_level), 0},
    {"log-format", ONE, AT(flags.log_format), 0},
    {"check", FLAG, AT(check), 0},
    {"version", FLAG, AT(version), 0},
    {"help", FLAG, AT(help), 0},
};

enum { N_OPTIONS = sizeof(options) / sizeof(options[0]), NAME_BYTES_MAX = 80 };

static const struct option *find(const char *name, size_t size)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (hps_text_is(options[i].name, name, size)) {
            return &options[i];
        }
    }
    return NULL;
}

static hps_status store(const struct option *option, const char *value, struct hps_options *to,
                        struct hps_error *err)
{
    char *base = (char *)to;
    if (option->kind == FLAG) {
        *(bool *)(void *)(base + option->offset) = true;
    } else if (option->kind == ONE) {
        *(const char **)(void *)(base + option->offset) = value;
    } else {
        size_t *n = (size_t *)(void *)(base + option->count);
        if (*n == HPS_OPTION_REPEAT_MAX) {
            return hps_error_set(err, HPS_INVALID, "--%s: given more than %d times", option->name,
                                 HPS_OPTION_REPEAT_MAX);
        }
        ((const char **)(void *)(base + option->offset))[(*n)++] = value;
    }
    return HPS_OK;
}

static hps_status unknown_argument(const char *arg, struct hps_error *err)
{
    struct hps_suggestion best = {0};
    char name[NAME_BYTES_MAX];

    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(arg, "="), arg);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        hps_suggest(&best, name + strspn(name, "-"), options[i].name);
    }
    if (best.text != NULL) {
        return hps_error_set(err, HPS_INVALID, "unknown argument \"%s\"; did you mean --%s?", arg,
                             best.text);
    }
    return hps_error_set(err, HPS_INVALID, "unknown argument \"%s\"; see hpsd --help", arg);
}

hps_status hps_options_parse(int argc, char **argv, struct hps_options *out_options,
                             struct hps_error *err)
{
    memset(out_options, 0, sizeof(*out_options));
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        const char *equals = strchr(arg, '=');
        size_t size = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
        const struct option *option =
            size > 2 && strncmp(arg, "--", 2) == 0 ? find(arg + 2, size - 2) : NULL;
        if (option == NULL) {
            return unknown_argument(arg, err);
        }
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (option->kind == FLAG && value != NULL) {
            return hps_error_set(err, HPS_INVALID, "--%s takes no value", option->name);
        }
        if (option->kind != FLAG && value == NULL) {
            if (i + 1 == argc) {
                return hps_error_set(err, HPS_INVALID, "--%s needs a value", option->name);
            }
            value = argv[++i];
        }
        hps_status status = store(option, value, out_options, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    out_options->flags.listen = out_options->flags.n_listen > 0 ? out_options->listen : NULL;
    if (out_options->help || out_options->version) {
        return HPS_OK;
    }
    if ((out_options->config_file != NULL) == (out_options->n_tables > 0)) {
        return hps_error_set(err, HPS_INVALID,
                             "give either --config FILE or --table NAME=PATH; see hpsd --help");
    }
    if (out_options->export_dir != NULL && out_options->check) {
        return hps_error_set(err, HPS_INVALID, "give either --check or --export DIR");
    }
    return HPS_OK;
}
