/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects keys of keyed records in another encoding: see keys.h.
 */
#include "server/update/sink/keys.h"

#include <string.h>

#include "base/heap.h"
#include "base/log.h"
#include "base/rows/update_record.h"

enum {
    PAIRS = 32,         /* keys that are looked up together, each in two encodings */
    FIRST_KEYS = 1024,  /* of a table: all are sampled */
    LATER_STEP = 256,   /* then every LATER_STEP-th */
    JUDGED = 256,       /* keys that count, for one result */
    WRONG_PERCENT = 95, /* of them, to be misencoded */
};

struct table_keys {
    hps_key pairs[PAIRS][2]; /* [n_pairs] the key as it was read, and in the other encoding */
    uint32_t n_pairs;
    uint32_t n_judged, n_wrong; /* keys that count, since the last result */
    uint64_t n_seen;
    bool text; /* the last key was decimal text */
    bool misencoded;
    bool logged;
};

struct hps_update_keys {
    const struct hps_version *version;
    struct hps_metric *misencoded;
    struct table_keys tables[]; /* [version->n_tables] */
};

struct hps_update_keys *hps_update_keys_new(const struct hps_version *version,
                                            struct hps_metric *misencoded)
{
    struct hps_update_keys *keys =
        hps_calloc(1, sizeof(*keys) + version->n_tables * sizeof(keys->tables[0]));
    if (keys != NULL) {
        keys->version = version;
        keys->misencoded = misencoded;
    }
    return keys;
}

void hps_update_keys_free(struct hps_update_keys *keys)
{
    hps_free(keys);
}

/* The key in the other encoding: 8 decimal digits as their number, other bytes swapped. */
static hps_key other_encoding(const uint8_t bytes[8], hps_key key, bool *out_text)
{
    hps_key number = 0;
    for (uint32_t i = 0; i < 8; i++) {
        if (bytes[i] < '0' || bytes[i] > '9') {
            *out_text = false;
            return __builtin_bswap64(key);
        }
        number = 10 * number + (hps_key)(bytes[i] - '0');
    }
    *out_text = true;
    return number;
}

static void check_table(const struct hps_update_keys *keys, struct table_keys *table,
                        uint32_t table_id)
{
    bool known[PAIRS][2];
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    const struct hps_version *version = keys->version;
    uint32_t n = table->n_pairs;
    table->n_pairs = 0;
    if (n == 0 || hps_update_known(version, table_id, table->pairs[0], 2 * n, known[0]) != HPS_OK) {
        return; /* a failing store is reported when the batch is applied */
    }
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        table->n_judged += known[i][0] != known[i][1] ? 1 : 0;
        n_wrong += known[i][1] && !known[i][0] ? 1 : 0;
    }
    table->n_wrong += n_wrong;
    hps_metric_add(keys->misencoded, n_wrong);
    if (table->n_judged < JUDGED) {
        return;
    }
    table->misencoded = table->n_wrong * 100 >= table->n_judged * WRONG_PERCENT;
    table->n_judged = table->n_wrong = 0;
    if (table->misencoded && !table->logged) {
        hps_update_topic_format(version->model, version->tables[table_id].name, topic);
        HPS_LOG(WARN, "updates",
                "keys misencoded: the keys of a topic's records have no rows, but they have rows "
                "in another encoding; publish keys as int64 little-endian, as docs/publishing.md "
                "describes",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("topic", topic),
                HPS_STR("encoding", table->text ? "decimal text" : "big-endian"));
        table->logged = true;
    }
}

void hps_update_keys_note(struct hps_update_keys *keys, uint32_t table_id, const void *key)
{
    struct table_keys *table = &keys->tables[table_id];
    table->n_seen++;
    if (table->n_seen > FIRST_KEYS && table->n_seen % LATER_STEP != 0) {
        return;
    }
    hps_key *pair = table->pairs[table->n_pairs];
    memcpy(&pair[0], key, sizeof(pair[0]));
    pair[1] = other_encoding(key, pair[0], &table->text);
    if (pair[0] != pair[1] && ++table->n_pairs == PAIRS) {
        check_table(keys, table, table_id);
    }
}

void hps_update_keys_check(struct hps_update_keys *keys)
{
    for (uint32_t i = 0; i < keys->version->n_tables; i++) {
        check_table(keys, &keys->tables[i], i);
    }
}

bool hps_update_keys_misencoded(const struct hps_update_keys *keys, uint32_t table_id)
{
    return table_id < keys->version->n_tables && keys->tables[table_id].misencoded;
}
