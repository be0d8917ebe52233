/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration that serves what hps-gen writes: ps.json, and what describes a DLE checkpoint.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/json.h"
#include "base/rows/fileio.h"
#include "tools/hps-gen.h"

enum { PS_JSON_BYTES_MAX = 16 << 20, MAX_BATCH_SIZE = 65536 };

/* ,\n      "name": [ one item per table ] */
static hps_status put_list(const struct gen *gen, struct hps_buf *text, const char *name,
                           hps_status (*put)(const struct gen *, struct hps_buf *, uint64_t))
{
    HPS_ASSERT(gen->n_tables > 0);
    hps_status status = hps_buf_printf(text, ",\n      \"%s\": [", name);

    for (uint64_t i = 0; i < gen->n_tables && status == HPS_OK; i++) {
        if (i > 0) {
            status = hps_buf_printf(text, ", ");
        }
        if (status == HPS_OK) {
            status = put(gen, text, i);
        }
    }
    return status == HPS_OK ? hps_buf_append(text, "]", 1) : status;
}

static hps_status put_path(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    char *path = gen_table_path(gen, gen->out_path, table);
    hps_status status = path == NULL ? HPS_NO_MEMORY : hps_json_text(text, path, strlen(path));

    hps_free(path);
    return status;
}

static hps_status put_name(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    (void)gen;
    return hps_buf_printf(text, "\"feature_%" PRIu64 "\"", table);
}

static hps_status put_dim(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    (void)table;
    return hps_buf_printf(text, "%" PRIu64, gen->dim);
}

static hps_status put_default(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    (void)gen;
    (void)table;
    return hps_buf_printf(text, "0.0");
}

static hps_status put_rows(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    return hps_buf_printf(text, "%" PRIu64, gen_table_rows(gen, table));
}

hps_status gen_put_ps_json(const struct gen *gen, struct hps_buf *text)
{
    hps_status status =
        hps_buf_printf(text, "{\n"
                             "  \"supportlonglong\": true,\n"
                             "  \"volatile_db\": {\"type\": \"parallel_hash_map\"},\n"
                             "  \"persistent_db\": {\"type\": \"rocks_db\", \"path\": ");
    if (status == HPS_OK) {
        status = hps_json_text(text, gen->state_path, strlen(gen->state_path));
    }
    if (status == HPS_OK) {
        status = hps_buf_printf(text,
                                "},\n"
                                "  \"models\": [\n"
                                "    {\n"
                                "      \"model\": \"%s\",\n"
                                "      \"max_batch_size\": %d,\n"
                                "      \"deployed_device_list\": [0],\n"
                                "      \"gpucache\": true,\n"
                                "      \"gpucacheper\": 0.2,\n"
                                "      \"hit_rate_threshold\": 1.0",
                                gen->model, MAX_BATCH_SIZE);
    }
    static const struct {
        const char *name;
        hps_status (*put)(const struct gen *, struct hps_buf *, uint64_t);
    } lists[] = {{"embedding_table_names", put_name},
                 {"sparse_files", put_path},
                 {"embedding_vecsize_per_table", put_dim},
                 {"default_value_for_each_table", put_default}};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]) && status == HPS_OK; i++) {
        status = put_list(gen, text, lists[i].name, lists[i].put);
    }
    if (status == HPS_OK &&
        gen->dtype != HPS_DTYPE_FP32) { /* HPS passes over it, and has no such rows */
        status = hps_buf_printf(text, ",\n      \"row_dtype\": \"%s\"", hps_dtype_name(gen->dtype));
    }
    return status == HPS_OK ? hps_buf_printf(text, "\n    }\n  ]\n}\n") : status;
}

hps_status gen_put_dle_json(const struct gen *gen, struct hps_buf *text)
{
    hps_status status = hps_buf_printf(text, "{\n      \"seed\": %" PRIu64, gen->seed);

    if (status == HPS_OK) {
        status = put_list(gen, text, "categorical_cardinalities", put_rows);
    }
    if (status == HPS_OK) {
        status = put_list(gen, text, "embedding_dim", put_dim);
    }
    return status == HPS_OK ? hps_buf_printf(text, "\n}\n") : status;
}

hps_status gen_write_json(const struct gen *gen, const char *name,
                          hps_status (*put)(const struct gen *, struct hps_buf *),
                          struct hps_error *err)
{
    HPS_ASSERT(gen->stage_path != NULL);
    struct hps_buf text;

    hps_buf_init(&text, PS_JSON_BYTES_MAX);
    char *path = hps_file_path("%s/%s", gen->stage_path, name);
    hps_status status = path == NULL ? HPS_NO_MEMORY : put(gen, &text);
    if (status == HPS_OK) {
        status = hps_file_replace(path, text.data, text.size, err);
    } else {
        hps_error_set(err, status, "%s: %s", name, hps_status_text(status));
    }
    hps_free(path);
    hps_buf_fini(&text);
    return status;
}
