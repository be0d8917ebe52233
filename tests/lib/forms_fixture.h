/* SPDX-License-Identifier: Apache-2.0
 *
 * A version with one table of each row type, over any tiers that a test combines. Random lookups
 * request every form of reply. The expected bytes are computed value by value in fp32, and checked
 * against double precision. Used by one thread.
 */
#ifndef HPS_TESTS_LIB_FORMS_FIXTURE_H
#define HPS_TESTS_LIB_FORMS_FIXTURE_H

#include <math.h>
#include <string.h>

#include "backends/host/map.h"
#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/lookup/lookup.h"
#include "tests/lib/fake_store.h"

enum {
    FORMS_TABLES = 5, /* table i has rows of type i + 1 */
    FORMS_DIM_MAX = 40,
    FORMS_ROW_MAX = FORMS_DIM_MAX * 4,
    FORMS_KEYS = 1000, /* keys are below this */
    FORMS_PARTS_MAX = 6,
    FORMS_SENT_MAX = 120 * 1000, /* keys of a part */
    FORMS_BAGS_MAX = 300
};

/* The possible tiers, from top to bottom. A gpu tier goes above them. */
enum forms_tier { FORMS_HOST_MAP, FORMS_FAKE_HOST, FORMS_REDIS, FORMS_DISK };

struct forms_part {
    uint8_t keys[FORMS_SENT_MAX * 8 + 1]; /* keys and weights begin at odd addresses */
    uint8_t weights[FORMS_SENT_MAX * 4 + 1];
    uint32_t offsets[FORMS_BAGS_MAX + 1];
};

struct forms_fixture {
    struct hps_version version;
    struct hps_table tables[FORMS_TABLES];
    uint8_t default_rows[FORMS_TABLES][FORMS_ROW_MAX];
    struct hps_store *stores[HPS_TIERS_MAX];
    uint8_t generation[FORMS_TABLES][FORMS_KEYS]; /* of each row */
    struct forms_part sent[FORMS_PARTS_MAX];
    struct hps_lookup_part parts[FORMS_PARTS_MAX];
    struct hps_arena *arena;
    struct hps_arena *scratch;
    uint64_t seed;
};

static inline uint64_t forms_draw(struct forms_fixture *fx, uint64_t n)
{
    fx->seed += HPS_HASH_GOLDEN;
    return hps_mix64(fx->seed) % n;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Seven of eight keys have a row. */
static inline bool forms_exists(const struct forms_fixture *fx, uint32_t table, hps_key key)
{
    (void)fx;
    return key < FORMS_KEYS && hps_mix64(key * 7 + table) % 8 != 0;
}

static inline void forms_row(const struct forms_fixture *fx, uint32_t table, hps_key key,
                             uint8_t *out_row)
{
    const struct hps_table *of = &fx->tables[table];
    uint64_t seed = key * 1000 + table * 100 + fx->generation[table][key];
    float values[FORMS_DIM_MAX];

    for (uint32_t d = 0; d < of->dim; d++) {
        uint64_t mixed = hps_mix64(hps_mix64(seed) + d);
        values[d] = (float)((int)(mixed % 20001) - 10000) / 7000.0f;
    }
    hps_row_convert(out_row, of->dtype, values, HPS_DTYPE_FP32, of->dim);
}

static inline void forms_put(struct forms_fixture *fx, uint32_t tier, uint32_t table, hps_key key)
{
    struct hps_space *space = fx->version.tiers[tier];
    const struct hps_call call = {0};
    uint8_t row[FORMS_ROW_MAX];

    forms_row(fx, table, key, row);
    hps_status status = space->store->ops->put(space, &call, &fx->tables[table], &key, row, 1);
    HPS_ASSERT(status == HPS_OK);
}

/* The last tier gets all keys. Each higher tier gets half of the keys, by its own hash. */
static inline void forms_fill(struct forms_fixture *fx)
{
    for (uint32_t tier = 0; tier < fx->version.n_tiers; tier++) {
        bool last = tier + 1 == fx->version.n_tiers;
        for (uint32_t table = 0; table < FORMS_TABLES; table++) {
            for (hps_key key = 0; key < FORMS_KEYS; key++) {
                if (forms_exists(fx, table, key) &&
                    (last || hps_mix64(key + table * 3 + tier * 11) % 2 == 0)) {
                    forms_put(fx, tier, table, key);
                }
            }
        }
    }
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static inline struct hps_store *forms_store(enum forms_tier tier)
{
    static const struct hps_fake_options fakes[] = {
        [FORMS_FAKE_HOST] = {.name = "host", .tier = HPS_TIER_HOST},
        [FORMS_REDIS] = {.name = "redis",
                         .tier = HPS_TIER_REDIS,
                         .caps = HPS_STORE_BLOCKING | HPS_STORE_SHARED | HPS_STORE_JOINS},
        [FORMS_DISK] = {.name = "rocksdb", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_BLOCKING},
    };
    struct hps_store *store = NULL;
    struct hps_error err;

    if (tier != FORMS_HOST_MAP) {
        return hps_fake_store_new(&fakes[tier]);
    }
    hps_status status = hps_host_map_open(UINT64_C(64) << 20, &store, &err);
    HPS_ASSERT(status == HPS_OK);
    return store;
}

static inline void forms_open(struct forms_fixture *fx, const enum forms_tier *tiers, uint32_t n)
{
    static const char *const names[FORMS_TABLES] = {"t0", "t1", "t2", "t3", "t4"};
    static const uint32_t dims[FORMS_TABLES] = {16, 7, FORMS_DIM_MAX, 5, 33};
    float ones[FORMS_DIM_MAX];

    for (uint32_t d = 0; d < FORMS_DIM_MAX; d++) {
        ones[d] = 1.5f - (float)d / 16.0f;
    }
    for (uint32_t t = 0; t < FORMS_TABLES; t++) {
        enum hps_dtype dtype = (enum hps_dtype)(t + 1);
        fx->tables[t] =
            (struct hps_table){.name = names[t],
                               .id = t,
                               .dim = dims[t],
                               .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, dims[t]),
                               .dtype = dtype,
                               .n_rows = FORMS_KEYS,
                               .default_row = fx->default_rows[t]};
        hps_row_convert(fx->default_rows[t], dtype, ones, HPS_DTYPE_FP32, dims[t]);
    }
    fx->version.model = (char *)"m";
    fx->version.label = (char *)"";
    fx->version.number = 1;
    fx->version.tables = fx->tables;
    fx->version.n_tables = FORMS_TABLES;
    const struct hps_space_id id = {
        .model = "m", .version = 1, .tables = fx->tables, .n_tables = FORMS_TABLES};
    for (uint32_t i = 0; i < n; i++) {
        struct hps_error err;
        fx->stores[i] = forms_store(tiers[i]);
        HPS_ASSERT(fx->stores[i] != NULL);
        hps_status status =
            fx->stores[i]->ops->space_open(fx->stores[i], &id, &fx->version.tiers[i], &err);
        HPS_ASSERT(status == HPS_OK);
        fx->version.n_tiers++;
    }
    fx->arena = hps_arena_new(4096, SIZE_MAX);
    fx->scratch = hps_arena_new(4096, SIZE_MAX);
    HPS_ASSERT(fx->arena != NULL && fx->scratch != NULL);
    forms_fill(fx);
}

static inline void forms_close(struct forms_fixture *fx)
{
    for (uint32_t i = 0; i < fx->version.n_tiers; i++) {
        fx->stores[i]->ops->space_close(fx->version.tiers[i]);
        fx->stores[i]->ops->close(fx->stores[i]);
    }
    fx->version.n_tiers = 0;
    hps_arena_free(fx->arena);
    hps_arena_free(fx->scratch);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Draw part i of a lookup: n_rows keys or, if pooled, n_rows bags. Many keys are duplicates. */
static inline void forms_draw_part(struct forms_fixture *fx, uint32_t i, uint32_t n_rows,
                                   enum hps_pooling pooling)
{
    struct forms_part *sent = &fx->sent[i];
    bool pooled = pooling > HPS_POOLING_NONE;
    bool weighted = pooled && forms_draw(fx, 2) == 0;
    uint32_t n = pooled ? 0 : n_rows;

    HPS_ASSERT(i < FORMS_PARTS_MAX && n_rows <= FORMS_BAGS_MAX);
    for (uint32_t b = 0; b < n_rows && pooled; b++) {
        sent->offsets[b] = n;
        n += (uint32_t)(forms_draw(fx, 4) == 0 ? 0 : forms_draw(fx, 12));
    }
    sent->offsets[pooled ? n_rows : 0] = n;
    uint64_t span = forms_draw(fx, 2) == 0 ? 30 : FORMS_KEYS + 50;
    for (uint32_t k = 0; k < n; k++) {
        hps_key key = forms_draw(fx, span);
        float weight = (float)((int)forms_draw(fx, 65) - 32) / 8.0f;
        memcpy(sent->keys + 1 + k * sizeof(key), &key, sizeof(key));
        memcpy(sent->weights + 1 + k * sizeof(weight), &weight, sizeof(weight));
    }
    fx->parts[i] = (struct hps_lookup_part){.table = &fx->tables[forms_draw(fx, FORMS_TABLES)],
                                            .keys = sent->keys + 1,
                                            .n_keys = n,
                                            .pooling = pooling,
                                            .n_bags = pooled ? n_rows : 0,
                                            .offsets = pooled ? sent->offsets : NULL,
                                            .weights = weighted ? sent->weights + 1 : NULL};
}

/* Draw a lookup of some tables, in a valid form. */
static inline void forms_draw_lookup(struct forms_fixture *fx, uint64_t seed,
                                     struct hps_lookup *out_lookup)
{
    static const enum hps_dtype outputs[] = {0, HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_BF16,
                                             HPS_DTYPE_RAW};

    fx->seed = seed;
    uint32_t n_parts = 1 + (uint32_t)forms_draw(fx, FORMS_PARTS_MAX);
    enum hps_dtype output = outputs[forms_draw(fx, 5)];
    bool raw = output == HPS_DTYPE_RAW;
    bool concat = !raw && forms_draw(fx, 2) == 0;
    uint32_t n_rows = (uint32_t)forms_draw(fx, FORMS_BAGS_MAX + 1);

    for (uint32_t i = 0; i < n_parts; i++) {
        enum hps_pooling pooling = raw ? HPS_POOLING_NONE : (enum hps_pooling)forms_draw(fx, 6);
        n_rows = concat ? n_rows : (uint32_t)forms_draw(fx, FORMS_BAGS_MAX + 1);
        forms_draw_part(fx, i, n_rows, pooling);
    }
    *out_lookup = (struct hps_lookup){
        .version = &fx->version,
        .arena = fx->arena,
        .scratch = fx->scratch,
        .parts = fx->parts,
        .n_parts = n_parts,
        .miss_policy = HPS_MISS_EXACT,
        .unknown_policy = (enum hps_unknown_policy)(1 + forms_draw(fx, 2)),
        .output = output,
        .layout = concat ? HPS_LAYOUT_CONCAT : (enum hps_row_layout)forms_draw(fx, 2)};
}

/* ---- expected replies ------------------------------------------------------------------------ */

static inline hps_key forms_key(const struct hps_lookup_part *part, uint32_t i)
{
    hps_key key;

    memcpy(&key, part->keys + (size_t)i * sizeof(key), sizeof(key));
    return key;
}

static inline float forms_weight(const struct hps_lookup_part *part, uint32_t i)
{
    float weight = 1;

    if (part->weights != NULL) {
        memcpy(&weight, part->weights + (size_t)i * sizeof(weight), sizeof(weight));
    }
    return weight;
}

/* The stored row of key i, or the substitute row that its status in the reply requires. */
static inline void forms_stored(const struct forms_fixture *fx, const struct hps_lookup *lookup,
                                const struct hps_lookup_part *part, uint32_t i, uint8_t *out_row)
{
    uint8_t status = part->key_status == NULL ? HPS_KEY_FOUND : part->key_status[i];

    if (status == HPS_KEY_FOUND) {
        forms_row(fx, part->table->id, forms_key(part, i), out_row);
    } else if (status == HPS_KEY_UNKNOWN && lookup->unknown_policy == HPS_UNKNOWN_ZERO) {
        memset(out_row, 0, part->table->row_bytes);
    } else {
        memcpy(out_row, part->table->default_row, part->table->row_bytes);
    }
}

/* The allowed error of a bag's value: of the fp32 sum, plus the rounding to the output type. */
static inline double forms_tolerance(enum hps_dtype out, double value, double size, uint32_t n)
{
    double rounding =
        out == HPS_DTYPE_FP32 ? 1.0 / (1 << 22) : (out == HPS_DTYPE_FP16 ? 1.0 / 1024 : 1.0 / 128);

    return size * (n + 4) / (1 << 23) + fabs(value) * rounding + 1e-7;
}

/* The values of bag b [dim] in fp32, as they must be. Asserts that double precision agrees. */
static inline void forms_bag(const struct forms_fixture *fx, const struct hps_lookup *lookup,
                             const struct hps_lookup_part *part, uint32_t b, float *out_values)
{
    uint8_t stored[FORMS_ROW_MAX];
    float row[FORMS_DIM_MAX];
    double sums[FORMS_DIM_MAX] = {0};
    double sizes[FORMS_DIM_MAX] = {0};
    double weights = 0;
    double squares = 0;
    float weights32 = 0;
    float squares32 = 0;
    uint32_t n = part->offsets[b + 1] - part->offsets[b];
    uint32_t dim = part->table->dim;

    memset(out_values, 0, dim * sizeof(*out_values));
    for (uint32_t i = part->offsets[b]; i < part->offsets[b + 1]; i++) {
        float weight = forms_weight(part, i);
        forms_stored(fx, lookup, part, i, stored);
        hps_row_convert(row, HPS_DTYPE_FP32, stored, part->table->dtype, dim);
        for (uint32_t d = 0; d < dim; d++) {
            volatile float product = weight * row[d]; /* its own rounding, no fused multiply-add */
            out_values[d] += product;
            sums[d] += (double)weight * row[d];
            sizes[d] += fabs((double)weight * row[d]);
        }
        weights += weight;
        squares += (double)weight * weight;
        weights32 += weight;
        squares32 += weight * weight;
    }
    for (uint32_t d = 0; d < dim; d++) {
        double divisor = 1;
        float divisor32 = 1;
        if (part->pooling == HPS_POOLING_MEAN) {
            divisor = weights;
            divisor32 = weights32;
        } else if (part->pooling == HPS_POOLING_SQRTN) {
            divisor = sqrt(squares);
            divisor32 = sqrtf(squares32);
        } else if (part->pooling == HPS_POOLING_MEAN_BY_COUNT) {
            divisor = n;
            divisor32 = (float)n;
        }
        out_values[d] = divisor32 == 0 ? 0 : out_values[d] / divisor32;
        double value = divisor == 0 ? 0 : sums[d] / divisor;
        double size = divisor == 0 ? 0 : sizes[d] / fabs(divisor);
        HPS_ASSERT(fabs(out_values[d] - value) <= forms_tolerance(HPS_DTYPE_FP32, value, size, n));
    }
}

/* Row r of the reply. */
static inline void forms_expected(const struct forms_fixture *fx, const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part, uint32_t r, uint8_t *out_row)
{
    uint8_t stored[FORMS_ROW_MAX];
    float values[FORMS_DIM_MAX];

    if (part->pooling > HPS_POOLING_NONE) {
        forms_bag(fx, lookup, part, r, values);
        hps_row_convert(out_row, part->out_dtype, values, HPS_DTYPE_FP32, part->table->dim);
    } else {
        forms_stored(fx, lookup, part, r, stored);
        hps_row_convert(out_row, part->out_dtype, stored, part->table->dtype, part->table->dim);
    }
}

#endif
