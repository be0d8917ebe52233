/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka records through the complete decoder: topics, headers, the three forms, the tables of a
 * version. The input is a list of records. A bad record must leave the batch unchanged. Accepted
 * records must be complete and match the version's tables. Decoding the same records again must
 * give the same batch.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/fuzz/script.h"
#include "tests/lib/decode_bytes.h"

enum { RECORDS_MAX = 16, N_TABLES = 5 };

static const struct {
    const char *name;
    uint32_t dim;
    enum hps_dtype dtype;
} shapes[N_TABLES] = {{"items", 2, HPS_DTYPE_FP32},
                      {"users", 4, HPS_DTYPE_FP16},
                      {"tags", 1, HPS_DTYPE_BF16},
                      {"shops", 3, HPS_DTYPE_INT8_ROWWISE_F32},
                      {"cities", 1, HPS_DTYPE_INT8_ROWWISE_F16}};

static struct hps_version *version_new(bool row_versions)
{
    struct hps_version *version = hps_version_new("m", 7, N_TABLES);

    HPS_ASSERT(version != NULL);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        version->tables[i] = (struct hps_table){
            .name = hps_strdup(shapes[i].name),
            .id = i,
            .dim = shapes[i].dim,
            .dtype = shapes[i].dtype,
            .row_bytes = (uint32_t)hps_dtype_row_bytes(shapes[i].dtype, shapes[i].dim)};
    }
    version->row_versions = row_versions;
    return version;
}

/* Reads every byte of the batch, and checks that the version accepts all rows. */
static uint64_t check_parts(struct hps_update_decoder *decoder, const struct hps_version *version,
                            bool nan_allowed)
{
    const struct hps_update_part *parts;
    uint32_t n;
    uint64_t n_keys = 0;
    uint64_t digest = 1;

    parts = hps_update_decoder_parts(decoder, &n);
    for (uint32_t i = 0; i < n; i++) {
        const struct hps_update_part *part = &parts[i];
        HPS_ASSERT(part->table_id < version->n_tables && part->n > 0);
        HPS_ASSERT(hps_update_check(version, part, nan_allowed, NULL) == HPS_OK);
        const struct hps_table *table = &version->tables[part->table_id];
        for (uint32_t k = 0; k < part->n; k++) {
            digest = hps_mix64(digest ^ part->keys[k]);
        }
        const uint8_t *rows = part->rows;
        for (size_t b = 0; rows != NULL && b < (size_t)part->n * table->row_bytes; b++) {
            digest = hps_mix64(digest ^ rows[b]);
        }
        n_keys += part->n;
    }
    HPS_ASSERT(n_keys == hps_update_decoder_keys(decoder));
    return digest;
}

/* A run of bytes, or NULL. */
static const uint8_t *some_bytes(struct script *script, bool there, size_t *out_size)
{
    *out_size = 0;
    return there ? script_run(script, out_size) : NULL;
}

static const char *some_topic(struct script *script, char out[256])
{
    static const char *const usual[] = {"hps_et.m.items", "hps_et.m.users", "hps_et.m.tags",
                                        "hps_et.m",       "hps_et.m.none",  "hps_et.other.items",
                                        "hps_et.m.shops", "hps_et.m.cities"};
    uint8_t choice = script_u8(script);

    return choice < 240 ? usual[choice % 8] : script_text(script, out);
}

static void add_record(struct hps_update_decoder *decoder, const struct hps_version *version,
                       struct script *script)
{
    char text[256];
    struct hps_update_route route;
    struct hps_update_bytes record = {0};
    struct hps_update_outcome outcome = {0};
    struct hps_error err = {0};

    bool known = hps_update_route(version, some_topic(script, text), &route);
    uint8_t what = script_u8(script);
    record.key = some_bytes(script, (what & 1) != 0, &record.key_size);
    record.version_header = some_bytes(script, (what & 2) != 0, &record.version_header_size);
    record.row_version_header =
        some_bytes(script, (what & 4) != 0, &record.row_version_header_size);
    if ((what & 8) == 0) {
        size_t value_bytes = script_u8(script);
        value_bytes |= (size_t)(script_u8(script) & 7) << 8;
        record.value = script_take(script, value_bytes, &record.value_size);
    }
    record.dtype_header = some_bytes(script, (what & 32) != 0, &record.dtype_header_size);
    if (!known) {
        return;
    }
    uint64_t n_keys = hps_update_decoder_keys(decoder);
    uint64_t bytes = hps_update_decoder_bytes(decoder);
    hps_status status = decode_bytes(decoder, &route, &record, (what & 16) == 0, &outcome, &err);
    HPS_ASSERT(status == HPS_OK || status == HPS_NO_MEMORY);
    if (status != HPS_OK || outcome.bad != NULL || outcome.for_other) {
        HPS_ASSERT(hps_update_decoder_keys(decoder) == n_keys);
        HPS_ASSERT(hps_update_decoder_bytes(decoder) == bytes);
        HPS_ASSERT(outcome.bad == NULL || err.text[0] != '\0');
    } else {
        HPS_ASSERT(hps_update_decoder_keys(decoder) == n_keys + outcome.n_keys);
    }
}

static uint64_t decode(struct hps_update_decoder *decoder, const struct hps_version *version,
                       bool nan_allowed, struct script script)
{
    for (unsigned i = 0; i < RECORDS_MAX && script.left > 0; i++) {
        add_record(decoder, version, &script);
    }
    return check_parts(decoder, version, nan_allowed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    uint8_t mode = script_u8(&script);
    const atomic_bool nan_allowed = (mode & 1) != 0;
    struct hps_version *version = version_new((mode & 2) != 0);
    struct hps_update_decoder *decoder =
        hps_update_decoder_new(version, (mode & 4) != 0 ? 4 : 8, &nan_allowed);

    HPS_ASSERT(decoder != NULL);
    uint64_t digest = decode(decoder, version, nan_allowed, script);
    hps_update_decoder_clear(decoder);
    HPS_ASSERT(hps_update_decoder_keys(decoder) == 0);
    HPS_ASSERT(decode(decoder, version, nan_allowed, script) == digest);
    hps_update_decoder_free(decoder);
    hps_version_free(version);
    return 0;
}
