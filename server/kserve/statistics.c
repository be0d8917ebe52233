/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelStatistics from the counts of cache/version/usage.h. A lookup is one inference and one
 * execution, with any number of keys. On workers.
 */
#include "cache/version/usage.h"
#include "inference/grpc_service.pb-c.h"
#include "server/access/access.h"
#include "server/kserve/op.h"

enum { NAMES_USUAL = 16 };

typedef Inference__ModelStatisticsResponse statistics_message;

/* NULL: op->error is set. */
static Inference__StatisticDuration *duration(struct hps_unary *op, uint64_t count, uint64_t us)
{
    Inference__StatisticDuration *message =
        hps_unary_message(op, &inference__statistic_duration__descriptor);
    if (message != NULL) {
        message->count = count;
        message->ns = us * 1000;
    }
    return message;
}

/* As in Triton, the times of stages include successful requests only. */
static Inference__InferStatistics *inference_stats(struct hps_unary *op,
                                                   const struct hps_usage_sums *sums)
{
    Inference__InferStatistics *stats =
        hps_unary_message(op, &inference__infer_statistics__descriptor);
    if (stats != NULL) {
        uint64_t n = sums->n_good;
        stats->success = duration(op, n, sums->good_us);
        stats->fail = duration(op, sums->n_failed, sums->failed_us);
        stats->queue = duration(op, n, sums->part_us[HPS_USAGE_QUEUE]);
        stats->compute_input = duration(op, n, sums->part_us[HPS_USAGE_INPUT]);
        stats->compute_infer = duration(op, n, sums->part_us[HPS_USAGE_WALK]);
        stats->compute_output = duration(op, n, sums->part_us[HPS_USAGE_OUTPUT]);
        stats->cache_hit = duration(op, 0, 0); /* no cache of replies */
        stats->cache_miss = duration(op, 0, 0);
    }
    return stats;
}

/* Each lookup is a batch of size 1. */
static void put_batches(struct hps_unary *op, const struct hps_usage_sums *sums,
                        Inference__ModelStatistics *to)
{
    to->batch_stats = kserve_messages(op, &inference__infer_batch_statistics__descriptor, 1);
    if (to->batch_stats == NULL || sums->n_good == 0) {
        return;
    }
    to->batch_stats[0]->batch_size = 1;
    to->batch_stats[0]->compute_input = duration(op, sums->n_good, sums->part_us[HPS_USAGE_INPUT]);
    to->batch_stats[0]->compute_infer = duration(op, sums->n_good, sums->part_us[HPS_USAGE_WALK]);
    to->batch_stats[0]->compute_output =
        duration(op, sums->n_good, sums->part_us[HPS_USAGE_OUTPUT]);
    to->n_batch_stats = 1;
}

static void put_version(struct hps_unary *op, const char *name, const struct hps_version *version,
                        statistics_message *reply)
{
    struct hps_usage_sums sums = {0};
    Inference__ModelStatistics *to = hps_unary_add(op, &inference__model_statistics__descriptor,
                                                   &reply->model_stats, &reply->n_model_stats);
    if (to == NULL) {
        return;
    }
    if (version->usage != NULL) {
        hps_usage_get(version->usage, &sums);
    }
    to->name = hps_unary_text(op, name);
    to->version = kserve_number(op, version->number);
    to->last_inference = sums.last_ms;
    to->inference_count = sums.n_good;
    to->execution_count = sums.n_good;
    to->inference_stats = inference_stats(op, &sums);
    put_batches(op, &sums, to);
}

/* Adds the versions to those in the reply. */
static void add_versions(struct hps_unary *op, statistics_message *reply, const char *name,
                         const struct hps_model_pinned *pinned)
{
    for (size_t i = 0; i < pinned->n; i++) {
        put_version(op, name, pinned->versions[i], reply);
    }
}

/* ---- all models ------------------------------------------------------------------------------ */

struct names {
    struct hps_unary *op;
    char **names; /* [n_max] */
    size_t n, n_max;
};

/* False: there are more names than n_max. */
static bool add_name(void *ctx, const char *model)
{
    struct names *names = ctx;
    if (!hps_access_sees(names->op->call, HPS_ROLE_READ, model)) {
        return true;
    }
    if (names->n < names->n_max) {
        names->names[names->n] = hps_unary_text(names->op, model);
    }
    return ++names->n <= names->n_max;
}

/* Collects the names of all visible models. False: op->error is set. */
static bool take_names(struct hps_unary *op, struct names *out_names)
{
    struct names names = {.op = op};
    for (size_t n_max = NAMES_USUAL; op->error.status == HPS_OK; n_max *= 2) {
        names.n = 0;
        names.n_max = n_max;
        names.names = hps_unary_alloc(op, n_max, sizeof(char *));
        if (names.names == NULL) {
            break;
        }
        hps_models_names(kserve_parts(op)->models, add_name, &names);
        if (names.n <= names.n_max) {
            break;
        }
    }
    *out_names = names;
    return op->error.status == HPS_OK;
}

static void add_all(struct hps_unary *op, statistics_message *reply)
{
    struct names names;
    if (!take_names(op, &names)) {
        return;
    }
    for (size_t i = 0; i < names.n && op->error.status == HPS_OK; i++) {
        struct hps_model_pinned pinned;
        hps_status status = hps_model_pin_all(kserve_parts(op)->models, names.names[i], op->arena,
                                              &pinned, &op->error);
        if (status == HPS_OK) {
            add_versions(op, reply, names.names[i], &pinned);
            hps_model_unpin(&pinned);
        } else if (status != HPS_EXHAUSTED) {
            op->error = (struct hps_error){0}; /* unloaded in the meantime */
        }
    }
}

void kserve_model_statistics(struct hps_unary *op)
{
    struct hps_model_pinned pinned;
    struct hps_version *chosen = NULL;
    statistics_message *reply =
        hps_unary_message(op, &inference__model_statistics_response__descriptor);
    if (reply == NULL) {
        return;
    }
    if (kserve_of(op)->name[0] == '\0') {
        add_all(op, reply);
    } else if (kserve_pin(op, &pinned, &chosen)) {
        add_versions(op, reply, kserve_of(op)->name, &pinned);
        hps_model_unpin(&pinned);
    }
    op->reply = &reply->base;
}
