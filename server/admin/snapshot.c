/* SPDX-License-Identifier: Apache-2.0
 *
 * The admin method that makes a snapshot of the persistent store. Runs on the admin pool.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/build_info.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rows/snapshot.h"
#include "cache/update/update.h"
#include "hps/v1/admin.pb-c.h"
#include "server/admin/op.h"

/* One snapshot at a time: it may copy for long, and other calls need threads of the pool. */
static atomic_bool under_way;
static atomic_bool cancel; /* the process ends */

struct version_list {
    struct hps_unary *op;
    Hps__V1__CreateSnapshotResponse *reply;
};

/* The records lack versions that are loading. */
static void add_version(void *ctx, const struct hps_version_view *view)
{
    const struct version_list *list = ctx;
    bool resident = strcmp(view->state, "resident") == 0 || strcmp(view->state, "active") == 0;
    Hps__V1__SnapshotVersion *of =
        resident ? hps_unary_add(list->op, &hps__v1__snapshot_version__descriptor,
                                 &list->reply->versions, &list->reply->n_versions)
                 : NULL;
    if (of != NULL) {
        of->model = hps_unary_text(list->op, view->model);
        of->version = view->version->number;
        of->active = view->version->number == view->active_version;
        of->update_sequence = hps_update_sequence(view->version);
    }
}

static hps_status create(struct hps_unary *op, struct hps_store *store, const char *directory,
                         uint64_t unix_ms, struct hps_snapshot_report *out_report)
{
    HPS_ASSERT(directory[0] == '/' && atomic_load(&under_way));
    uint64_t start_us = hps_clock_us();
    hps_status status = hps_snapshot_begin(directory, &op->error);
    if (status == HPS_OK) {
        status = store->ops->durable->checkpoint(store, directory, &op->error);
    }
    if (status == HPS_OK) {
        status = hps_snapshot_finish(directory, hps_build_version, unix_ms, &cancel, out_report,
                                     &op->error);
    }
    if (status == HPS_OK) {
        HPS_LOG(INFO, "snapshot", "snapshot made", HPS_STR("directory", directory),
                HPS_U64("files", out_report->n_files), HPS_U64("bytes", out_report->n_bytes),
                HPS_U64("duration_us", hps_clock_us() - start_us));
    }
    return status;
}

void hps_admin_snapshot_cancel(void)
{
    atomic_store(&cancel, true);
}

void admin_create_snapshot(struct hps_unary *op)
{
    const Hps__V1__CreateSnapshotRequest *request =
        (const Hps__V1__CreateSnapshotRequest *)op->request;
    struct hps_store *store =
        hps_stores_durable(&hps_catalog_env(admin_parts(op)->catalog)->stores);
    struct hps_snapshot_report report = {0};
    if (request->directory[0] != '/') {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "directory: got \"%.200s\", expected an absolute path",
                                 request->directory));
        return;
    }
    if (store == NULL) {
        hps_ignore(hps_error_set(&op->error, HPS_PRECONDITION,
                                 "a snapshot needs persistent_db, which is disabled"));
        return;
    }
    Hps__V1__CreateSnapshotResponse *reply =
        hps_unary_message(op, &hps__v1__create_snapshot_response__descriptor);
    if (reply == NULL) {
        return;
    }
    reply->created_unix_ms = (int64_t)hps_clock_wall_ms();
    if (atomic_exchange(&under_way, true)) {
        hps_ignore(hps_error_set(&op->error, HPS_BUSY, "another snapshot is being made"));
        return;
    }
    /* List the versions before the snapshot, so that it contains at least these. */
    struct version_list list = {op, reply};
    hps_catalog_each(admin_parts(op)->catalog, add_version, &list);
    hps_status status = op->error.status;
    if (status == HPS_OK) {
        status = create(op, store, request->directory, (uint64_t)reply->created_unix_ms, &report);
    }
    atomic_store(&under_way, false);
    if (status != HPS_OK) {
        return;
    }
    reply->file_count = report.n_files;
    reply->byte_count = report.n_bytes;
    op->reply = &reply->base;
}
