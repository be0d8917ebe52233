/* SPDX-License-Identifier: Apache-2.0
 *
 * Bags of keys: each bag becomes one row of the reply. First, a memory tier that pools adds the
 * bags of which it has every key, where their rows lie. The keys of other bags are walked like all
 * keys, and their rows are gathered as stored. They are added here once all of them are there.
 * Other threads may take pieces of both.
 */
#include <string.h>

#include "backends/store_pool.h"
#include "base/assert.h"
#include "base/clock.h"
#include "cache/lookup/internal.h"

enum {
    WORD_BAGS = 32,           /* per word of `whole`, and keys per word of `hits` */
    PIECES_MAX = 32,          /* per part that is added here */
    ROWS_AT_A_TIME = 256,     /* per call of the kernel that adds */
    KEYS_BETWEEN_LOOKS = 4096 /* between checks for deadline and cancellation */
};

static uint32_t n_words(uint32_t n_bits)
{
    return n_bits / WORD_BAGS + (n_bits % WORD_BAGS == 0 ? 0 : 1);
}

/* ---- where they lie -------------------------------------------------------------------------- */

/* The bags of one part, as passed to the tier. */
struct question {
    struct hps_lookup_part *part; /* NULL: the tier is not used for this part */
    struct hps_bags bags;
};

/* Some bags of one part, pooled by one thread. */
struct pool_piece {
    const struct question *question;
    uint32_t first;
    uint32_t n;
};

struct pool_pass {
    const struct hps_walk_call *call;
    struct hps_space *space;
    struct hps_arena *scratch; /* NULL: several threads run pieces */
    struct pool_piece *pieces;
};

/* The first tier below devices, if it is in memory and pools. */
static bool pooling_tier(const struct hps_lookup *lookup, struct hps_tier *out_tier)
{
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(lookup->version, tiers);
    uint32_t i = 0;

    while (i < n && (tiers[i].caps & HPS_CAP_ON_DEVICE) != 0) {
        i++;
    }
    if (i == n || (tiers[i].caps & HPS_CAP_BLOCKS) != 0 ||
        tiers[i].space->store->ops->pool == NULL) {
        return false;
    }
    *out_tier = tiers[i];
    return true;
}

/* The end of a piece that begins at bag `first`: whole words of bags, until there are enough keys.
 */
static uint32_t piece_end(const struct hps_bags *bags, uint32_t n_bags, uint32_t first)
{
    uint32_t end = first;

    do {
        end = n_bags - end > WORD_BAGS ? end + WORD_BAGS : n_bags;
    } while (end < n_bags && bags->offsets[end] - bags->offsets[first] < HPS_WALK_KEYS_PIECE);
    return end;
}

/* A piece that was not pooled has no whole bag: its keys are walked. */
static void pool_piece(void *ctx, uint32_t i)
{
    const struct pool_pass *pass = ctx;
    const struct pool_piece *piece = &pass->pieces[i];
    struct hps_bags bags = piece->question->bags;
    struct hps_call call = {.scratch = pass->scratch,
                            .deadline_us = pass->call->deadline_us,
                            .cancelled = pass->call->cancelled,
                            .cancelled_ctx = pass->call->cancelled_ctx};
    hps_status status = hps_walk_check_interrupted(pass->call);

    if (status == HPS_OK) {
        if (call.scratch != NULL) {
            hps_arena_reset(call.scratch);
        }
        status = pass->space->store->ops->pool->bags(
            pass->space, &call, piece->question->part->table, &bags, piece->first, piece->n);
    }
    if (status != HPS_OK) {
        memset(bags.whole + piece->first / WORD_BAGS, 0, n_words(piece->n) * sizeof(*bags.whole));
    }
}

/* Cut all questions into pieces, one question after the other. array NULL: only count the pieces.
 */
static uint32_t cut(const struct question *questions, uint32_t n_questions,
                    struct pool_piece *array)
{
    uint32_t n = 0;

    for (uint32_t q = 0; q < n_questions; q++) {
        const struct question *question = &questions[q];
        uint32_t n_bags = question->part->n_bags;
        for (uint32_t first = 0, end = 0; first < n_bags; first = end, n++) {
            end = piece_end(&question->bags, n_bags, first);
            if (array != NULL) {
                array[n] =
                    (struct pool_piece){.question = question, .first = first, .n = end - first};
            }
        }
    }
    return n;
}

/* EXHAUSTED: arena */
static hps_status make_question(struct hps_lookup *lookup, struct hps_lookup_part *part,
                                struct question *out_question)
{
    uint32_t *whole = hps_arena_alloc(lookup->arena, n_words(part->n_bags) * sizeof(*whole));

    if (whole == NULL) {
        return HPS_EXHAUSTED;
    }
    *out_question = (struct question){.part = part,
                                      .bags = {.keys = part->keys,
                                               .weights = part->weights,
                                               .offsets = part->offsets,
                                               .pooling = part->pooling,
                                               .out = {.rows = lookup->rows + part->rows_offset,
                                                       .stride = (size_t)part->stride,
                                                       .dtype = part->out_dtype},
                                               .whole = whole}};
    return HPS_OK;
}

/* Set bits [begin, end). */
static void set_bits(uint32_t *words, uint32_t begin, uint32_t end)
{
    while (begin < end) {
        uint32_t n = WORD_BAGS - begin % WORD_BAGS;
        n = n < end - begin ? n : end - begin;
        words[begin / WORD_BAGS] |= (UINT32_MAX >> (WORD_BAGS - n)) << begin % WORD_BAGS;
        begin += n;
    }
}

hps_status lookup_take_whole(struct hps_lookup *lookup, struct hps_lookup_part *part,
                             uint32_t *whole, enum hps_tier_kind kind)
{
    uint32_t *hits = hps_arena_calloc(lookup->arena, n_words(part->n_keys), sizeof(*hits));

    if (hits == NULL) {
        return HPS_EXHAUSTED;
    }
    for (uint32_t b = 0; b < part->n_bags; b++) {
        if ((whole[b / WORD_BAGS] >> b % WORD_BAGS & 1) != 0) {
            set_bits(hits, part->offsets[b], part->offsets[b + 1]);
            part->n_whole_bags++;
        }
    }
    part->whole = whole;
    part->hits = hits;
    part->hits_tier = kind;
    return HPS_OK;
}

/* Pool in pieces, with helpers if there are many keys. EXHAUSTED: arena */
static hps_status ask(struct hps_lookup *lookup, struct hps_space *space,
                      const struct question *questions, uint32_t n_questions, uint64_t n_keys)
{
    const struct hps_walk_call call = lookup_walk_call(lookup, lookup->deadline_us);
    bool split = lookup->helpers != NULL && n_keys >= 4 * (uint64_t)HPS_WALK_KEYS_PIECE;
    uint32_t n = cut(questions, n_questions, NULL);
    struct pool_pass pass = {.call = &call,
                             .space = space,
                             .scratch = split ? NULL : lookup->scratch,
                             .pieces = hps_arena_alloc(lookup->arena, n * sizeof(*pass.pieces))};

    if (pass.pieces == NULL) {
        return HPS_EXHAUSTED;
    }
    cut(questions, n_questions, pass.pieces);
    if (split) {
        hps_pool_split(lookup->helpers, n, pool_piece, &pass);
    }
    for (uint32_t i = 0; i < n && !split; i++) {
        pool_piece(&pass, i);
    }
    return HPS_OK;
}

/* Whether the tier is used for the part: not if the gpu was queried for its keys. */
static bool is_asked(const struct hps_lookup_part *part)
{
    return part->form == HPS_PART_POOLED && part->n_bags > 0 && part->hits == NULL;
}

hps_status lookup_pool_bags(struct hps_lookup *lookup, struct hps_error *err)
{
    struct hps_tier tier;
    uint32_t n = 0;
    uint64_t n_keys = 0;

    if (lookup->unit || !pooling_tier(lookup, &tier)) {
        return HPS_OK; /* a unit needs each row, to read it again */
    }
    uint64_t start_us = hps_clock_us();
    struct question *questions =
        hps_arena_alloc(lookup->arena, lookup->n_pooled * sizeof(*questions));
    hps_status status = questions == NULL ? HPS_EXHAUSTED : HPS_OK;
    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        if (is_asked(&lookup->parts[i])) {
            status = make_question(lookup, &lookup->parts[i], &questions[n++]);
            n_keys += lookup->parts[i].n_keys;
        }
    }
    if (status == HPS_OK && n > 0) {
        status = ask(lookup, tier.space, questions, n, n_keys);
    }
    for (uint32_t q = 0; q < n && status == HPS_OK; q++) {
        status = lookup_take_whole(lookup, questions[q].part, questions[q].bags.whole, tier.kind);
    }
    lookup->pooled_us = hps_clock_us() - start_us;
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the bags of %u tables", lookup->n_pooled);
    }
    return HPS_OK;
}

void lookup_report_pooled(struct hps_lookup *lookup)
{
    bool first = true;

    for (uint32_t i = 0; i < lookup->n_parts && lookup->n_pooled > 0; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        struct hps_tier_report *report = &part->walk.reports[part->hits_tier];
        if (part->form == HPS_PART_POOLED && part->hits != NULL &&
            !hps_tier_on_device(part->hits_tier)) {
            report->n_asked += part->walk.n_found_before;
            report->duration_us += first ? lookup->pooled_us : 0;
            first = false;
        }
    }
}

/* ---- rows that were gathered ----------------------------------------------------------------- */

/* Some bags of one part, added by one thread. */
struct sum_piece {
    uint32_t first, end; /* bags */
    uint32_t look;       /* key of the last check for interruption */
    float *sum;          /* [dim] NULL: sums are made in their places */
    hps_status status;
};

struct sum_pass {
    const struct hps_walk_call *call;
    const struct hps_lookup_part *part;
    const uint8_t *unknown_row; /* as stored, like the next */
    const uint8_t *defaulted_row;
    struct sum_piece pieces[PIECES_MAX];
};

/* The first duplicate with an index of at least `key`. */
static uint32_t duplicate_from(const struct hps_lookup_part *part, uint32_t key)
{
    uint32_t lo = 0;
    uint32_t hi = part->n_keys - part->n_unique;

    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (part->duplicates[middle].index < key) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/* Find the rows of keys [begin, end), in order. duplicate: the first one that may be among them. */
static void find_rows(const struct sum_pass *pass, uint32_t begin, uint32_t end,
                      uint32_t *duplicate, const uint8_t **out_rows)
{
    const struct hps_lookup_part *part = pass->part;
    uint32_t n_duplicates = part->n_keys - part->n_unique;
    size_t row_bytes = part->table->row_bytes;

    for (uint32_t i = begin; i < end; i++) {
        uint8_t status = part->key_status == NULL ? HPS_KEY_FOUND : part->key_status[i];
        uint32_t first = i;
        while (*duplicate < n_duplicates && part->duplicates[*duplicate].index < i) {
            (*duplicate)++;
        }
        if (*duplicate < n_duplicates && part->duplicates[*duplicate].index == i) {
            first = part->duplicates[*duplicate].first;
        }
        if (status == HPS_KEY_FOUND) {
            out_rows[i - begin] = part->gathered + first * row_bytes;
        } else {
            out_rows[i - begin] =
                status == HPS_KEY_UNKNOWN ? pass->unknown_row : pass->defaulted_row;
        }
    }
}

/* Whether to continue. Checks for interruption after every KEYS_BETWEEN_LOOKS keys. */
static bool goes_on(const struct sum_pass *pass, struct sum_piece *piece, uint32_t key)
{
    if (key - piece->look >= KEYS_BETWEEN_LOOKS) {
        piece->look = key;
        piece->status = hps_walk_check_interrupted(pass->call);
    }
    return piece->status == HPS_OK;
}

static void add_bag(const struct sum_pass *pass, struct sum_piece *piece, uint32_t bag,
                    uint32_t *duplicate)
{
    const struct hps_lookup_part *part = pass->part;
    const struct hps_table *table = part->table;
    uint8_t *place = part->rows + bag * part->stride;
    float *sum = piece->sum == NULL ? (float *)(void *)place : piece->sum;
    const uint8_t *rows[ROWS_AT_A_TIME];
    struct hps_bag_weights weights = {0};
    uint32_t end = part->offsets[bag + 1];

    memset(sum, 0, table->dim * sizeof(*sum));
    for (uint32_t at = part->offsets[bag]; at < end; at += ROWS_AT_A_TIME) {
        if (!goes_on(pass, piece, at)) {
            return; /* there will be no answer */
        }
        uint32_t n = end - at < ROWS_AT_A_TIME ? end - at : ROWS_AT_A_TIME;
        const uint8_t *given = part->weights == NULL ? NULL : part->weights + at * sizeof(float);
        find_rows(pass, at, at + n, duplicate, rows);
        hps_row_sum_add(sum, table->dtype, table->dim, rows, given, n);
        hps_bag_weights_add(&weights, given, n);
    }
    hps_row_sum_end(place, part->out_dtype, sum, table->dim, part->pooling, &weights);
}

static void add_piece(void *ctx, uint32_t i)
{
    struct sum_pass *pass = ctx;
    struct sum_piece *piece = &pass->pieces[i];
    const struct hps_lookup_part *part = pass->part;
    uint32_t duplicate = duplicate_from(part, part->offsets[piece->first]);

    piece->look = part->offsets[piece->first];
    for (uint32_t bag = piece->first; bag < piece->end && piece->status == HPS_OK; bag++) {
        bool whole =
            part->whole != NULL && (part->whole[bag / WORD_BAGS] >> bag % WORD_BAGS & 1) != 0;
        if (!whole && goes_on(pass, piece, part->offsets[bag])) {
            add_bag(pass, piece, bag, &duplicate);
        }
    }
}

/* The first bag that begins at this key or later. */
static uint32_t bag_from(const struct hps_lookup_part *part, uint64_t key)
{
    uint32_t lo = 0;
    uint32_t hi = part->n_bags;

    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (part->offsets[middle] < key) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/* Pieces with about the same number of keys. */
static void cut_sums(struct sum_pass *pass, uint32_t n)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = i + 1 == n
                           ? pass->part->n_bags
                           : bag_from(pass->part, (uint64_t)pass->part->n_keys * (i + 1) / n);
        pass->pieces[i] = (struct sum_piece){.first = first, .end = end};
        first = end;
    }
}

/* Prepare rows for keys that were not found, and memory for sums that are not made in their places.
 * EXHAUSTED */
static hps_status take_memory(struct hps_lookup *lookup, struct sum_pass *pass, uint32_t n)
{
    const struct hps_lookup_part *part = pass->part;
    const struct hps_table *table = part->table;
    bool zero = part->n_unknown > 0 && lookup->unknown_policy == HPS_UNKNOWN_ZERO;

    pass->defaulted_row = table->default_row;
    pass->unknown_row = table->default_row;
    if (zero) {
        pass->unknown_row = hps_arena_calloc(lookup->arena, 1, table->row_bytes);
        if (pass->unknown_row == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    for (uint32_t i = 0; i < n && part->out_dtype != HPS_DTYPE_FP32; i++) {
        pass->pieces[i].sum = hps_arena_alloc(lookup->arena, table->dim * sizeof(float));
        if (pass->pieces[i].sum == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    return HPS_OK;
}

static hps_status add_part(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                           struct hps_pool *helpers, struct hps_error *err)
{
    const struct hps_walk_call call = lookup_walk_call(lookup, lookup->deadline_us);
    struct sum_pass pass = {.call = &call, .part = part};
    uint32_t n = (part->n_keys - part->walk.n_found_before) / HPS_WALK_KEYS_PIECE;

    n = n < PIECES_MAX ? n : PIECES_MAX;
    n = n < 4 || helpers == NULL ? 1 : n;
    cut_sums(&pass, n);
    hps_status status = take_memory(lookup, &pass, n);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "table '%s': no memory to add %u bags", part->table->name,
                             part->n_bags);
    }
    if (n == 1) {
        add_piece(&pass, 0);
    } else {
        hps_pool_split(helpers, n, add_piece, &pass);
    }
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = pass.pieces[i].status;
    }
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "table '%s': %s while bags were added",
                                            part->table->name, hps_status_text(status));
}

hps_status lookup_add_bags(struct hps_lookup *lookup, struct hps_pool *helpers,
                           struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        if (part->form == HPS_PART_POOLED && part->n_whole_bags < part->n_bags) {
            HPS_ASSERT(part->finished && part->rows != NULL);
            status = add_part(lookup, part, helpers, err);
        }
    }
    return status;
}
