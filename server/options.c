/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses arguments into struct hps_options. Main thread.
 */
#include "server/options.h"

#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "cache/device/device.h"

static struct hps_options given; /* target of the argument parser */

static const struct hps_arg args[] = {
    {"config", 0, HPS_ARG_TEXT, "FILE", &given.config_file,
     "ps.json of HPS, with or without the keys that hpsd adds (docs/config.md lists all)"},
    {"table", 0, HPS_ARG_LIST, "NAME=PATH", &given.tables,
     "instead of --config: serve a .npy file, a tensor FILE.safetensors:TENSOR or the directory of "
     "a "
     "HugeCTR table; repeatable; all tables belong to the model \"default\""},
    {"state-dir", 0, HPS_ARG_TEXT, "DIR", &given.flags.state_dir,
     "where the RocksDB store and the admin socket live; required unless FILE has "
     "server.state_dir, or for --check"},
    {"listen", 0, HPS_ARG_LIST, "ADDR", &given.listen,
     "gRPC listener: HOST:PORT (port 0: any free port) or unix:PATH; repeatable (default "
     "127.0.0.1:8601)"},
    {"kserve-listen", 0, HPS_ARG_LIST, "ADDR", &given.kserve_listen,
     "listener for KServe v2 over HTTP/1.1, like --listen; repeatable (default: none)"},
    {"http-listen", 0, HPS_ARG_TEXT, "ADDR", &given.flags.http_listen,
     "listener for /metrics, /healthz and /readyz (default 127.0.0.1:8602)"},
    {"admin-listen", 0, HPS_ARG_TEXT, "ADDR", &given.flags.admin_listen,
     "listener for hpsctl (default unix:/run/hpsd/admin.sock as a systemd service, else "
     "unix:STATE_DIR/admin.sock)"},
    {"check", 0, HPS_ARG_FLAG, NULL, &given.flags.check,
     "check the configuration, its model files and its Kafka properties; print what differs from "
     "HPS, and the effective configuration as JSON; exit. Opens no store and no connection"},
    {"log-level", 0, HPS_ARG_TEXT, "LEVEL", &given.flags.log_level,
     "debug, info, warn or error (default info)"},
    {"log-format", 0, HPS_ARG_TEXT, "FORMAT", &given.flags.log_format,
     "logfmt or json, on stderr (default logfmt)"},
    HPS_ARGS_END,
};

static const struct hps_arg_removed removed[] = {
    {"export",
     "load the model files that HPS has loaded; hpsd does not read rows in the stores of HPS"},
    {NULL, NULL},
};

static char cuda[96]; /* the second line of --version */

static const struct hps_program program = {
    .self = {.name = "hpsd",
             .words = "--config FILE\n"
                      "--table NAME=PATH... --state-dir DIR\n"
                      "--config FILE [--state-dir DIR] --check",
             .summary = "Serve embedding tables over gRPC from GPU, memory, Redis and RocksDB.",
             .args = args,
             .details =
                 "\n"
                 "Prints `listening grpc=ADDR http=ADDR admin=ADDR pid=N` on stdout when\n"
                 "it accepts connections (with kserve=ADDR, if configured), and `ready ...` when\n"
                 "it serves every model. The log is on stderr.\n"
                 "\n"
                 "signals:\n"
                 "  TERM, INT  drain: finish calls in flight and exit; a second one: exit at once\n"
                 "  QUIT       exit at once\n"
                 "  HUP        reload the configuration, certificates and tokens\n"
                 "  USR1       write the state to the log",
             .example = "hpsd --table items=items.npy --state-dir /tmp/hpsd"},
    .exit_codes = "0 drained, or done   1 fatal   2 usage or configuration\n"
                  "3 address or lock taken   4 store unusable, or format too new",
    .parts = cuda,
    .removed = removed,
};

const struct hps_program *hps_options_program(void)
{
    const char *processors = hps_device_cuda_processors();

    (void)snprintf(cuda, sizeof(cuda), "cuda %s%s%s\n", hps_device_cuda_version(),
                   processors[0] != '\0' ? " for " : "", processors);
    return &program;
}

hps_status hps_options_parse(int argc, char **argv, struct hps_options *out_options,
                             struct hps_error *err)
{
    memset(&given, 0, sizeof(given));
    hps_status status = hps_args_read(&program, argc, argv, &given.args, err);
    if (status != HPS_OK) {
        return status;
    }
    if (given.args.ask == HPS_ARGS_RUN) {
        const char *wrong = given.config_file != NULL && given.tables.n > 0
                                ? "--config and --table: expected one of them"
                            : given.config_file == NULL && given.tables.n == 0
                                ? "no configuration: expected --config FILE or --table NAME=PATH"
                                : NULL;
        if (wrong != NULL) {
            return hps_error_set(err, HPS_INVALID, "%s", wrong);
        }
    }
    *out_options = given;
    out_options->flags.n_listen = given.listen.n;
    out_options->flags.n_kserve_listen = given.kserve_listen.n;
    out_options->flags.kserve_listen =
        given.kserve_listen.n > 0 ? out_options->kserve_listen.items : NULL;
    out_options->flags.listen = given.listen.n > 0 ? out_options->listen.items : NULL;
    return HPS_OK;
}
