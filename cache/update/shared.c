/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates of a tier that is shared with other daemons. It gets the log positions before and after
 * each batch, because any daemon may be the first to apply it. On the updater's thread.
 */
#include <inttypes.h>

#include "base/assert.h"
#include "cache/update/internal.h"

static const struct hps_call no_limit = {0};

bool update_is_shared(const struct hps_space *space)
{
    return (space->store->ops->caps & HPS_STORE_SHARED) != 0;
}

struct hps_space *hps_update_shared(const struct hps_version *version)
{
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        struct hps_space *space = version->tiers[i];
        if (update_is_shared(space) && space->store->ops->log != NULL) {
            return space;
        }
    }
    return NULL;
}

bool hps_update_shared_alone(const struct hps_version *version)
{
    struct hps_space *space = hps_update_shared(version);
    return space != NULL && space == version->tiers[version->n_tiers - 1];
}

void hps_update_shared_take(struct hps_version *version, struct hps_log_report *out_report)
{
    *out_report = version->updates->shared;
    version->updates->shared = (struct hps_log_report){0};
}

static hps_status log_apply(const struct hps_version *version, struct hps_space *space,
                            const struct hps_update_batch *batch, const struct update_plan *plan,
                            struct hps_log_report *out_report, struct hps_error *err)
{
    const struct hps_store_ops *ops = space->store->ops;
    const struct hps_log_batch of = {.writes = plan->writes,
                                     .write_spans = plan->spans,
                                     .n_writes = plan->n_writes,
                                     .spans = batch->spans,
                                     .n_spans = batch->n_spans,
                                     .erase_only = version->row_versions};
    hps_status status = ops->log->apply(space, &no_limit, &of, out_report);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    return hps_error_set(err, status,
                         "tier %s has not applied all of a batch: %s (%" PRIu32 " shards have it, "
                         "%" PRIu32 " are behind it, %" PRIu32 " failed)",
                         ops->name, hps_status_text(status),
                         out_report->n_applied + out_report->n_had, out_report->n_gap,
                         out_report->n_failed);
}

/* With row versions, `plan` lacks the keys with a higher stored version. That version may come from
 * a partition in which a shard is behind; the shard's row is then older than this write. So all
 * keys of the batch are erased. */
static hps_status apply_all(const struct hps_version *version, struct hps_space *space,
                            const struct hps_update_batch *batch, const struct update_plan *plan,
                            struct hps_log_report *out_report, struct hps_error *err)
{
    struct update_plan all = {0};
    if (!version->row_versions) {
        return log_apply(version, space, batch, plan, out_report, err);
    }
    hps_status status = update_plan_make(version, batch, false, &all, err);
    if (status == HPS_OK) {
        status = log_apply(version, space, batch, &all, out_report, err);
        update_plan_free(&all);
    }
    return status;
}

hps_status update_shared_write(struct hps_version *version, struct hps_space *space,
                               const struct hps_update_batch *batch, const struct update_plan *plan,
                               struct hps_error *err)
{
    struct hps_log_report *sum = &version->updates->shared;
    struct hps_log_report report = {0};
    if (batch->apart) {
        HPS_ASSERT(!hps_update_shared_alone(version));
        space->store->ops->log->leave(space);
        return HPS_OK;
    }
    HPS_ASSERT(batch->n_spans > 0 || plan->n_writes == 0);
    if (batch->n_spans == 0) {
        return HPS_OK;
    }
    hps_status status = apply_all(version, space, batch, plan, &report, err);
    sum->n_applied += report.n_applied;
    sum->n_had += report.n_had;
    sum->n_gap += report.n_gap;
    sum->n_failed += report.n_failed;
    return status;
}

hps_status hps_update_replay(struct hps_version *version, const struct hps_update_batch *batch,
                             struct hps_log_report *out_report, struct hps_error *err)
{
    struct hps_space *space = hps_update_shared(version);
    struct update_plan plan = {0};
    HPS_ASSERT(space != NULL && batch->n_spans > 0);
    hps_status status = update_plan_make(version, batch, false, &plan, err);
    if (status == HPS_OK) {
        status = log_apply(version, space, batch, &plan, out_report, err);
        update_plan_free(&plan);
    }
    return status;
}
