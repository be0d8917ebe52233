/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl export: the server writes a version as model files. One thread.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/heap.h"
#include "tools/hpsctl.h"

static struct {
    int64_t version;
    const char *to, *format;
} flags;

const struct hps_arg hpsctl_export_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &flags.version, "version to export (default: the active one)"},
    {"to", 0, HPS_ARG_TEXT, "DIR", &flags.to,
     "new or empty directory on the machine of the server, below server.export_roots"},
    {"format", 0, HPS_ARG_CHOICE, "npy|safetensors|hugectr", &flags.format,
     "form of the files (default: npy)"},
    HPS_ARGS_END,
};

static int print_exported(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"TABLE", ">ROWS", NULL};
    const Hps__V1__ExportVersionResponse *exported = reply;
    struct hpsctl_table table;
    char text[HPSCTL_TEXT_BYTES];

    (void)ctl;
    printf("version %" PRId64 ", %s\n", exported->version,
           hpsctl_bytes_text(exported->byte_count, text));
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < exported->n_tables; i++) {
        hpsctl_table_cell(&table, "%s", exported->tables[i]->table);
        hpsctl_table_cell(&table, "%" PRIu64, exported->tables[i]->row_count);
    }
    return hpsctl_table_print(&table);
}

int hpsctl_export(struct hpsctl *ctl)
{
    Hps__V1__ExportVersionRequest request = HPS__V1__EXPORT_VERSION_REQUEST__INIT;

    if (flags.to == NULL) {
        return hpsctl_usage(ctl, "export: expected --to DIR");
    }
    request.model = (char *)ctl->words[0];
    request.version = flags.version;
    request.format = flags.format != NULL ? (char *)flags.format : (char *)"";
    request.directory = hpsctl_absolute(flags.to);
    if (request.directory == NULL) {
        return hpsctl_no_memory();
    }
    int code = hpsctl_call_print(ctl, "ExportVersion", &request.base,
                                 &hps__v1__export_version_response__descriptor, print_exported);
    hps_free(request.directory);
    return code;
}
