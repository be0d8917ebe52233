/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl snapshot: saves the persistent store of a running server, and restores the store of a
 * stopped one. One thread.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/snapshot.h"
#include "tools/hpsctl.h"

static struct {
    const char *state_dir;
} flags = {NULL};

const struct hps_arg hpsctl_snapshot_args[] = {
    {"state-dir", 0, HPS_ARG_TEXT, "PATH", &flags.state_dir,
     "restore: state directory (or persistent_db.path) of a stopped hpsd; it must not have a "
     "database"},
    HPS_ARGS_END,
};

static int print_created(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"MODEL", ">VERSION", "ACTIVE", ">UPDATE SEQUENCE", NULL};
    const Hps__V1__CreateSnapshotResponse *created = reply;
    struct hpsctl_table table;
    char text[HPSCTL_TEXT_BYTES];

    (void)ctl;
    printf("%" PRIu32 " files, %s; at least\n", created->file_count,
           hpsctl_bytes_text(created->byte_count, text));
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < created->n_versions; i++) {
        const Hps__V1__SnapshotVersion *of = created->versions[i];
        hpsctl_table_cell(&table, "%s", of->model);
        hpsctl_table_cell(&table, "%" PRId64, of->version);
        hpsctl_table_cell(&table, "%s", of->active ? "yes" : "");
        hpsctl_table_cell(&table, "%" PRIu64, of->update_sequence);
    }
    return hpsctl_table_print(&table);
}

static int create(struct hpsctl *ctl, const char *dir)
{
    Hps__V1__CreateSnapshotRequest request = HPS__V1__CREATE_SNAPSHOT_REQUEST__INIT;

    request.directory = hpsctl_absolute(dir);
    if (request.directory == NULL) {
        return hpsctl_no_memory();
    }
    int code = hpsctl_call_print(ctl, "CreateSnapshot", &request.base,
                                 &hps__v1__create_snapshot_response__descriptor, print_created);
    hps_free(request.directory);
    return code;
}

static int restore(struct hpsctl *ctl, const char *dir)
{
    HPS_ASSERT(ctl->client == NULL);
    struct hps_snapshot_report report = {0};
    struct hps_error err = {0};
    char text[HPSCTL_TEXT_BYTES];

    if (flags.state_dir == NULL) {
        return hpsctl_usage(ctl, "snapshot restore: expected --state-dir PATH");
    }
    if (hps_snapshot_restore(dir, flags.state_dir, &report, &err) != HPS_OK) {
        int code = hpsctl_fail(ctl, &err);
        return err.status == HPS_DATA_LOSS ? TOOL_NEGATIVE : code;
    }
    if (!report.verified) {
        (void)fprintf(stderr,
                      "hpsctl: note: %s is of format 1, which has no checksums: only the sizes of "
                      "its files are verified\n",
                      dir);
    }
    if (hpsctl_json(ctl)) {
        printf("{\"file_count\":%" PRIu32 ",\"byte_count\":%" PRIu64 ",\"verified\":%s}\n",
               report.n_files, report.n_bytes, report.verified ? "true" : "false");
    } else {
        printf("%s/hpsd: %" PRIu32 " files, %s\n", flags.state_dir, report.n_files,
               hpsctl_bytes_text(report.n_bytes, text));
    }
    return TOOL_OK;
}

int hpsctl_snapshot(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 2);
    return ctl->choice == 0 ? create(ctl, ctl->words[1]) : restore(ctl, ctl->words[1]);
}
