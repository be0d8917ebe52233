/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets and their growth. On the thread of the table's writer. The code for readers is inline in
 * the header.
 *
 * Measured (10 M rows of 512 bytes): keys in the bucket are faster than byte tags, which need a
 * second dependent cache line. Multiply-high indexing uses the memory budget exactly.
 */
#include "backends/host/index.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum {
    HOMES_MIN = 4,
    TAIL_BUCKETS = 32,     /* at most; after the last home, instead of wrapping around */
    STEP_BUCKETS = 8,      /* moved per operation; a growth ends long before the next begins */
    AREA_BYTES = 64 << 10, /* arrays of at least this size have their own pages */
    /* Grown arrays of at least this size use huge pages from the start. */
    HUGE_ARRAY_BYTES = 32 << 20,
    CHUNKS = 64,      /* in which smaller arrays return their pages */
    SLACK_CHUNKS = 3, /* memory of both arrays during a growth beyond the larger one */
    GROWTH_SHARE = 5, /* a larger value means fewer growths and more unused memory after each */
    SHRINK_HOMES_MIN = 64, /* smaller arrays are never shrunk */
};

/* Index of a table without rows. Never charged and never written. */
static struct hps_host_bucket no_bucket;
static struct hps_host_buckets no_buckets = {.array = &no_bucket};

/* ---- arrays ---------------------------------------------------------------------------------- */

static uint64_t homes_for(uint64_t n_rows)
{
    /* 3/4 full: about one key in ten is in the next bucket */
    uint64_t n = n_rows / 15 * 4 + (n_rows % 15 * 4 + 14) / 15;
    return n > HOMES_MIN || n == 0 ? n : HOMES_MIN;
}

static uint64_t buckets_of(uint64_t n_homes)
{
    return n_homes + (n_homes < TAIL_BUCKETS ? n_homes : TAIL_BUCKETS);
}

static size_t array_bytes(uint64_t n_homes)
{
    return (size_t)buckets_of(n_homes) * HPS_HOST_BUCKET_BYTES;
}

/* The charge for an array. */
static size_t charge_of(uint64_t n_homes)
{
    return n_homes == 0 ? 0 : sizeof(struct hps_host_buckets) + array_bytes(n_homes);
}

uint64_t hps_host_index_bytes(uint64_t n_rows)
{
    return charge_of(homes_for(n_rows));
}

static bool in_area(const struct hps_host_buckets *buckets)
{
    return buckets->area.start != NULL;
}

static size_t chunk_bytes(const struct hps_host_buckets *buckets)
{
    return buckets->huge ? HPS_HOST_HUGE_BYTES
                         : hps_host_pages_round(array_bytes(buckets->n_homes) / CHUNKS);
}

static void buckets_free(struct hps_host_index *index, struct hps_host_buckets *buckets)
{
    if (buckets == &no_buckets || buckets == NULL) {
        return;
    }
    if (in_area(buckets)) {
        if (buckets->huge) {
            atomic_fetch_sub_explicit(&index->account->huge_bytes, buckets->area.bytes,
                                      memory_order_relaxed);
        }
        hps_host_area_free(&buckets->area);
    } else {
        hps_free_aligned(buckets->array);
    }
    hps_free(buckets);
}

static bool array_make(struct hps_host_index *index, struct hps_host_buckets *buckets, size_t bytes,
                       bool grown)
{
    if (bytes < AREA_BYTES) {
        buckets->array = hps_alloc_aligned(HPS_HOST_BUCKET_BYTES, bytes);
        if (buckets->array != NULL) {
            memset((void *)buckets->array, 0, bytes);
        }
        return buckets->array != NULL;
    }
    if (!hps_host_area_reserve(&buckets->area, bytes)) {
        return false;
    }
    if (!hps_host_area_commit(&buckets->area, bytes)) {
        hps_host_area_free(&buckets->area);
        return false;
    }
    /* A growing array takes pages gradually while the old one returns its pages. So it uses huge
     * pages only if it is much larger than one of them. */
    bool huge = bytes >= (size_t)(grown ? HUGE_ARRAY_BYTES : HPS_HOST_HUGE_BYTES);
    buckets->huge = hps_host_area_advise(&buckets->area, index->account->budget, huge);
    if (buckets->huge) {
        atomic_fetch_add_explicit(&index->account->huge_bytes, buckets->area.bytes,
                                  memory_order_relaxed);
    }
    buckets->array = (struct hps_host_bucket *)(void *)buckets->area.start;
    return true;
}

/* Upper bound of the memory of an array and of the one that it gradually replaces. */
static size_t both_bytes(const struct hps_host_buckets *from, uint64_t n_homes)
{
    size_t bytes = charge_of(n_homes);
    size_t old = charge_of(from->n_homes);
    size_t spread = SLACK_CHUNKS * chunk_bytes(from);
    size_t less = bytes < old ? bytes : old;
    return bytes + old - less + (in_area(from) && spread < less ? spread : less);
}

/* from: the array that the new one gradually replaces, or NULL. EXHAUSTED or NO_MEMORY. */
static hps_status buckets_new(struct hps_host_index *index, uint64_t n_homes,
                              struct hps_host_buckets *from, struct hps_host_buckets **out_buckets)
{
    size_t bytes = charge_of(n_homes);
    size_t slack = 0;
    if (from != NULL) {
        size_t both = both_bytes(from, n_homes);
        slack = both - bytes;
        bytes = both - charge_of(from->n_homes);
    }
    if (!hps_host_charge(index->account, bytes)) {
        return HPS_EXHAUSTED;
    }
    struct hps_host_buckets *buckets = hps_calloc(1, sizeof(*buckets));
    if (buckets == NULL || !array_make(index, buckets, array_bytes(n_homes), from != NULL)) {
        hps_free(buckets);
        hps_host_discharge(index->account, bytes);
        return HPS_NO_MEMORY;
    }
    buckets->n_homes = n_homes;
    buckets->generation = ++index->generation;
    buckets->slack_bytes = slack;
    atomic_init(&buckets->from, from);
    *out_buckets = buckets;
    return HPS_OK;
}

static struct hps_host_buckets *now_of(const struct hps_host_index *index)
{
    return atomic_load_explicit(&index->now, memory_order_relaxed);
}

static struct hps_host_buckets *from_of(const struct hps_host_buckets *now)
{
    return atomic_load_explicit(&now->from, memory_order_relaxed);
}

static uint64_t moved_of(const struct hps_host_buckets *now)
{
    return atomic_load_explicit(&now->moved, memory_order_relaxed);
}

hps_status hps_host_index_open(struct hps_host_index *index, struct hps_host_account *account,
                               struct hps_epoch *epoch, uint64_t seed, uint64_t n_rows)
{
    *index = (struct hps_host_index){
        .account = account, .epoch = epoch, .seed = seed, .n_foretold = n_rows};
    struct hps_host_buckets *buckets = &no_buckets;
    if (n_rows != 0) {
        hps_status status = buckets_new(index, homes_for(n_rows), NULL, &buckets);
        if (status != HPS_OK) {
            return status;
        }
    }
    atomic_store_explicit(&index->now, buckets, memory_order_release);
    return HPS_OK;
}

void hps_host_index_close(struct hps_host_index *index)
{
    struct hps_host_buckets *now = now_of(index);
    if (now == NULL) {
        return;
    }
    buckets_free(index, from_of(now));
    uint64_t bytes = charge_of(now->n_homes) + now->slack_bytes;
    while (index->gone != NULL) {
        struct hps_host_buckets *gone = index->gone;
        index->gone = gone->next;
        bytes += gone->slack_bytes;
        buckets_free(index, gone);
    }
    index->gone_last = NULL;
    buckets_free(index, now);
    hps_host_discharge(index->account, bytes);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t state_of(const struct hps_host_bucket *bucket)
{
    return atomic_load_explicit(&bucket->state, memory_order_relaxed);
}

static void state_set(struct hps_host_bucket *bucket, uint32_t state)
{
    atomic_store_explicit(&bucket->state, (uint16_t)state, memory_order_release);
}

static void passed_add(struct hps_host_bucket *bucket, int by)
{
    uint32_t state = state_of(bucket);
    if (state >> HPS_HOST_PASSED_SHIFT != HPS_HOST_PASSED_MAX) {
        state_set(bucket, (uint32_t)((int)state + by * (1 << HPS_HOST_PASSED_SHIFT)));
    }
}

/* Make a slot with key and row live. A reader that sees it live also sees its key and row, and that
 * the buckets before it are passed over. */
static void slot_open(struct hps_host_buckets *buckets, uint64_t home, struct hps_host_place place,
                      bool marked)
{
    uint64_t at = (uint64_t)(place.bucket - buckets->array);
    HPS_DEBUG_ASSERT(home <= at && at < buckets_of(buckets->n_homes));
    for (uint64_t i = home; i < at; i++) {
        passed_add(&buckets->array[i], 1);
    }
    uint32_t mark = UINT32_C(1) << (HPS_HOST_MARK_SHIFT + place.slot);
    uint32_t state = (state_of(place.bucket) & ~mark) | (marked ? mark : 0);
    state_set(place.bucket, state | UINT32_C(1) << place.slot);
}

/* The slots of a bucket that are not free for a new key. */
static uint32_t taken_in(uint32_t state)
{
    return (state | state >> HPS_HOST_MARK_SHIFT) & HPS_HOST_LIVE_ALL;
}

/* Put an erased key back into its old slot. Readers may still look at that slot: they find the old
 * row or the new one, and both belong to the key. Otherwise a key that is added and erased
 * repeatedly would use up all slots around its home. False: it has no such slot. */
static bool slot_revive(struct hps_host_buckets *buckets, uint64_t hash, hps_key key, uint32_t row,
                        bool marked)
{
    uint64_t home = hps_host_home(hash, buckets->n_homes);
    uint64_t end = buckets_of(buckets->n_homes);
    uint32_t taken = HPS_HOST_LIVE_ALL;
    for (uint64_t at = home; at < end && taken == HPS_HOST_LIVE_ALL; at++) {
        struct hps_host_bucket *bucket = &buckets->array[at];
        uint32_t state = state_of(bucket);
        taken = taken_in(state);
        uint32_t dead = taken & ~state & hps_host_match(bucket, key);
        if (dead != 0) {
            struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(dead)};
            atomic_store_explicit(&bucket->rows[place.slot], row, memory_order_release);
            hps_host_heat_set(place, 0);
            slot_open(buckets, home, place, marked);
            return true;
        }
    }
    return false;
}

/* Put a key into the first free slot from its home on. Returns false if no slot is free. */
static bool slot_fill(struct hps_host_buckets *buckets, uint64_t hash, hps_key key, uint32_t row,
                      bool marked, unsigned heat)
{
    uint64_t home = hps_host_home(hash, buckets->n_homes);
    uint64_t end = buckets_of(buckets->n_homes);
    uint64_t at = home;
    uint32_t taken = HPS_HOST_LIVE_ALL;
    while (taken == HPS_HOST_LIVE_ALL) {
        if (at == end) {
            return false;
        }
        taken = taken_in(state_of(&buckets->array[at++]));
    }
    struct hps_host_bucket *bucket = &buckets->array[at - 1];
    struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(~taken)};
    atomic_store_explicit(&bucket->rows[place.slot], row, memory_order_relaxed);
    atomic_store_explicit(&bucket->keys[place.slot], key, memory_order_relaxed);
    hps_host_heat_set(place, heat);
    slot_open(buckets, home, place, marked);
    return true;
}

struct hps_host_place hps_host_index_find(const struct hps_host_index *index, hps_key key)
{
    const struct hps_host_buckets *now = atomic_load_explicit(&index->now, memory_order_acquire);
    return hps_host_probe(hps_host_aim(now, hps_host_hash(index->seed, key)), key);
}

static struct hps_host_buckets *array_for(const struct hps_host_index *index, uint64_t hash)
{
    struct hps_host_buckets *now = now_of(index);
    struct hps_host_buckets *from = from_of(now);
    return from != NULL && hps_host_home(hash, from->n_homes) >= moved_of(now) ? from : now;
}

hps_status hps_host_index_add(struct hps_host_index *index, hps_key key, uint32_t row,
                              bool probation)
{
    uint64_t hash = hps_host_hash(index->seed, key);
    bool more = true;
    if (index->n_dead != 0 && slot_revive(array_for(index, hash), hash, key, row, probation)) {
        index->n_dead--;
        index->n_keys++;
        return HPS_OK;
    }
    while (!slot_fill(array_for(index, hash), hash, key, row, probation, 0)) {
        if (!more) {
            return HPS_EXHAUSTED;
        }
        more = hps_host_index_step(index); /* very rare: the end of the old array is full */
    }
    index->n_keys++;
    if (index->n_keys >= index->n_foretold) {
        /* All expected keys are there; from now on the size follows the number of keys. */
        index->n_foretold = 0;
    }
    return HPS_OK;
}

void hps_host_index_kill(struct hps_host_index *index, struct hps_host_place place,
                         uint32_t *out_generation, uint64_t *out_slot)
{
    hps_key key = atomic_load_explicit(&place.bucket->keys[place.slot], memory_order_relaxed);
    uint64_t hash = hps_host_hash(index->seed, key);
    struct hps_host_buckets *buckets = array_for(index, hash);
    uint64_t at = (uint64_t)(place.bucket - buckets->array);
    HPS_DEBUG_ASSERT((state_of(place.bucket) >> place.slot & 1) != 0);
    HPS_DEBUG_ASSERT(at < buckets_of(buckets->n_homes));
    HPS_DEBUG_ASSERT(index->n_keys > 0);
    uint32_t state = state_of(place.bucket) & ~(UINT32_C(1) << place.slot);
    state_set(place.bucket, state | UINT32_C(1) << (HPS_HOST_MARK_SHIFT + place.slot));
    for (uint64_t i = hps_host_home(hash, buckets->n_homes); i < at; i++) {
        passed_add(&buckets->array[i], -1);
    }
    index->n_keys--;
    index->n_dead++;
    *out_generation = buckets->generation;
    *out_slot = at * HPS_HOST_BUCKET_KEYS + place.slot;
}

/* The bucket of a killed slot. NULL: its array was freed. */
static struct hps_host_bucket *bucket_of(const struct hps_host_index *index, uint32_t generation,
                                         uint64_t slot)
{
    struct hps_host_buckets *buckets = now_of(index);
    struct hps_host_buckets *from = from_of(buckets);
    uint64_t at = slot / HPS_HOST_BUCKET_KEYS;
    if (from != NULL && from->generation == generation && at >= moved_of(buckets)) {
        return &from->array[at];
    }
    return buckets->generation == generation ? &buckets->array[at] : NULL;
}

bool hps_host_index_is_dead(const struct hps_host_index *index, uint32_t generation, uint64_t slot,
                            uint32_t row)
{
    struct hps_host_bucket *bucket = bucket_of(index, generation, slot);
    if (bucket == NULL) {
        return false;
    }
    struct hps_host_place place = {bucket, (unsigned)(slot % HPS_HOST_BUCKET_KEYS)};
    return (state_of(bucket) >> place.slot & 1) == 0 && hps_host_row_of(place) == row;
}

void hps_host_index_bury(struct hps_host_index *index, uint32_t generation, uint64_t slot)
{
    struct hps_host_bucket *bucket = bucket_of(index, generation, slot);
    if (bucket == NULL) {
        return;
    }
    uint32_t bit = UINT32_C(1) << (slot % HPS_HOST_BUCKET_KEYS);
    uint32_t state = state_of(bucket);
    HPS_ASSERT((state & bit) == 0);
    HPS_DEBUG_ASSERT(index->n_dead > 0);
    state_set(bucket, state & ~(bit << HPS_HOST_MARK_SHIFT));
    index->n_dead--;
}

void hps_host_unmark(struct hps_host_place place)
{
    uint32_t state = state_of(place.bucket);
    state_set(place.bucket, state & ~(UINT32_C(1) << (HPS_HOST_MARK_SHIFT + place.slot)));
}

static void bucket_each(const struct hps_host_buckets *buckets, uint64_t first,
                        void (*fn)(void *ctx, hps_key key), void *ctx)
{
    for (uint64_t at = first; at < buckets_of(buckets->n_homes); at++) {
        const struct hps_host_bucket *bucket = &buckets->array[at];
        uint32_t live = state_of(bucket) & HPS_HOST_LIVE_ALL;
        for (; live != 0; live &= live - 1) {
            unsigned slot = (unsigned)__builtin_ctz(live);
            fn(ctx, atomic_load_explicit(&bucket->keys[slot], memory_order_relaxed));
        }
    }
}

void hps_host_index_each(const struct hps_host_index *index, void (*fn)(void *ctx, hps_key key),
                         void *ctx)
{
    const struct hps_host_buckets *now = now_of(index);
    const struct hps_host_buckets *from = from_of(now);
    bucket_each(now, 0, fn, ctx);
    if (from != NULL) {
        bucket_each(from, moved_of(now), fn, ctx);
    }
}

bool hps_host_index_walk(const struct hps_host_index *index, struct hps_host_cursor *cursor,
                         uint32_t n_buckets, bool (*fn)(void *ctx, struct hps_host_place place),
                         void *ctx)
{
    struct hps_host_buckets *now = now_of(index);
    if (from_of(now) != NULL || cursor->generation != now->generation) {
        *cursor = (struct hps_host_cursor){.generation = now->generation};
    }
    if (from_of(now) != NULL) {
        return false;
    }
    uint64_t n = buckets_of(now->n_homes);
    for (uint32_t i = 0; i < n_buckets && cursor->at < n; i++, cursor->at++) {
        struct hps_host_bucket *bucket = &now->array[cursor->at];
        uint32_t live = state_of(bucket) & HPS_HOST_LIVE_ALL;
        for (; live != 0; live &= live - 1) {
            struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(live)};
            if (!fn(ctx, place)) {
                return false;
            }
        }
    }
    return cursor->at >= n;
}

/* ---- growing and shrinking ------------------------------------------------------------------- */

/* Copy the live keys of a bucket. They stay in place for readers that came earlier. */
static void bucket_move(struct hps_host_index *index, struct hps_host_buckets *now,
                        const struct hps_host_bucket *bucket)
{
    uint32_t state = state_of(bucket);
    uint32_t live = state & HPS_HOST_LIVE_ALL;
    uint32_t marked = state >> HPS_HOST_MARK_SHIFT & HPS_HOST_LIVE_ALL;
    HPS_DEBUG_ASSERT(index->n_dead >= (uint64_t)__builtin_popcount(marked & ~live));
    index->n_dead -= (uint64_t)__builtin_popcount(marked & ~live);
    for (; live != 0; live &= live - 1) {
        struct hps_host_place place = {(struct hps_host_bucket *)bucket,
                                       (unsigned)__builtin_ctz(live)};
        hps_key key = atomic_load_explicit(&bucket->keys[place.slot], memory_order_relaxed);
        bool filled = slot_fill(now, hps_host_hash(index->seed, key), key, hps_host_row_of(place),
                                (marked >> place.slot & 1) != 0, hps_host_heat(place));
        /* A larger array has more free slots at its end than the old one. A smaller array is used
         * only if less than half of its slots will be taken. The seed is secret. */
        HPS_ASSERT(filled);
    }
}

/* Return pages of the old array that no reader can see any more. */
static void chunks_give_back(struct hps_host_index *index, struct hps_host_buckets *now,
                             struct hps_host_buckets *from)
{
    if (!in_area(from)) {
        return;
    }
    if (index->giving_to != 0) {
        if (!hps_epoch_passed(index->epoch, index->giving_stamp)) {
            return;
        }
        hps_host_area_discard(&from->area, index->given_back, index->giving_to);
        index->given_back = index->giving_to;
        index->giving_to = 0;
    }
    size_t end = (size_t)moved_of(now) * HPS_HOST_BUCKET_BYTES;
    end -= end % chunk_bytes(from);
    if (end > index->given_back) {
        index->giving_to = end;
        index->giving_stamp = hps_epoch_retire(index->epoch);
    }
}

static void gone_add(struct hps_host_index *index, struct hps_host_buckets *buckets)
{
    buckets->next = NULL;
    buckets->stamp = hps_epoch_retire(index->epoch);
    if (index->gone == NULL) {
        index->gone = buckets;
    } else {
        index->gone_last->next = buckets;
    }
    index->gone_last = buckets;
}

/* Free replaced arrays in order. If one has readers, later ones may have them, too. */
static void gone_free(struct hps_host_index *index)
{
    while (index->gone != NULL && hps_epoch_passed(index->epoch, index->gone->stamp)) {
        struct hps_host_buckets *gone = index->gone;
        index->gone = gone->next;
        size_t bytes = gone->slack_bytes; /* the charge that is left, see buckets_new */
        buckets_free(index, gone);
        hps_host_discharge(index->account, bytes);
    }
}

/* Finish a growth: the old array is empty. */
static void growth_end(struct hps_host_index *index, struct hps_host_buckets *now,
                       struct hps_host_buckets *from)
{
    HPS_ASSERT(moved_of(now) == buckets_of(from->n_homes));
    atomic_store_explicit(&now->from, NULL, memory_order_release);
    if (in_area(now) && !now->huge && array_bytes(now->n_homes) >= HPS_HOST_HUGE_BYTES) {
        (void)hps_host_area_advise(&now->area, index->account->budget, true);
    }
    from->slack_bytes = now->slack_bytes; /* discharged when it is freed */
    now->slack_bytes = 0;
    index->given_back = 0;
    index->giving_to = 0;
    gone_add(index, from);
}

bool hps_host_index_step(struct hps_host_index *index)
{
    struct hps_host_buckets *now = now_of(index);
    struct hps_host_buckets *from = from_of(now);
    gone_free(index);
    if (from == NULL) {
        return false;
    }
    uint64_t n = buckets_of(from->n_homes);
    uint64_t at = moved_of(now);
    uint64_t end = at + STEP_BUCKETS;
    while (at < n && (at < end || hps_host_passed(state_of(&from->array[at - 1])))) {
        bucket_move(index, now, &from->array[at++]);
    }
    atomic_store_explicit(&now->moved, at, memory_order_release);
    if (at < n) {
        chunks_give_back(index, now, from);
        return true;
    }
    growth_end(index, now, from);
    gone_free(index);
    return false;
}

/* Start to move to an array of n_homes. No other move may be in progress. */
static hps_status growth_begin(struct hps_host_index *index, uint64_t n_homes)
{
    struct hps_host_buckets *now = now_of(index);
    struct hps_host_buckets *old = now != &no_buckets ? now : NULL;
    struct hps_host_buckets *buckets = NULL;
    HPS_ASSERT(from_of(now) == NULL);
    hps_status status = buckets_new(index, n_homes, old, &buckets);
    if (status == HPS_OK) {
        atomic_store_explicit(&index->now, buckets, memory_order_release);
    }
    return status;
}

hps_status hps_host_index_reserve(struct hps_host_index *index, uint64_t n_rows)
{
    uint64_t n_homes = homes_for(n_rows);
    index->n_foretold = n_rows > index->n_keys ? n_rows : 0;
    if (now_of(index)->n_homes >= n_homes) {
        return HPS_OK;
    }
    while (hps_host_index_step(index)) {
    }
    return growth_begin(index, n_homes);
}

static uint64_t more_of(uint64_t n_homes, uint64_t share)
{
    return n_homes / share > HOMES_MIN ? n_homes / share : HOMES_MIN;
}

hps_status hps_host_index_ensure_capacity(struct hps_host_index *index)
{
    uint64_t n_homes = now_of(index)->n_homes;
    uint64_t n_taken = index->n_keys + index->n_dead;
    if (n_taken < n_homes * 4) {
        return HPS_OK;
    }
    uint64_t n_hard = n_homes * 4 + n_homes / 4;
    /* Dead slots become free soon. The index is too small only if its live keys nearly fill it. */
    bool small = index->n_keys >= n_homes * 4 - n_homes / 4 || n_taken >= n_hard;
    hps_status status = HPS_EXHAUSTED;
    if (small) {
        while (hps_host_index_step(index)) { /* very rare: the last growth has long ended */
        }
        status = growth_begin(index, n_homes + more_of(n_homes, GROWTH_SHARE));
        if (status != HPS_OK) { /* too little memory is left for a normal growth */
            status = growth_begin(index, n_homes + more_of(n_homes, 32));
        }
    }
    return status == HPS_OK || n_taken < n_hard ? HPS_OK : status;
}

/* The end of the array can be full while the rest is not. A larger array spreads its keys. If the
 * rest is nearly empty, the keys themselves collide. */
hps_status hps_host_index_widen(struct hps_host_index *index)
{
    uint64_t n_homes = now_of(index)->n_homes;
    if (index->n_keys + index->n_dead < n_homes) {
        return HPS_EXHAUSTED;
    }
    while (hps_host_index_step(index)) {
    }
    return growth_begin(index, n_homes + more_of(n_homes, GROWTH_SHARE));
}

void hps_host_index_fit(struct hps_host_index *index)
{
    struct hps_host_buckets *now = now_of(index);
    uint64_t n_homes = now->n_homes / 2;
    bool sparse = index->n_keys + index->n_dead <= n_homes * 2 && now->n_homes >= SHRINK_HOMES_MIN;
    if (sparse && from_of(now) == NULL && index->gone == NULL &&
        homes_for(index->n_foretold) <= n_homes) {
        hps_status status = growth_begin(index, n_homes);
        hps_ignore(status); /* without memory it stays as it is */
    }
}

void hps_host_index_clear(struct hps_host_index *index)
{
    struct hps_host_buckets *now = now_of(index);
    if (now == &no_buckets) {
        return;
    }
    atomic_store_explicit(&index->now, &no_buckets, memory_order_release);
    struct hps_host_buckets *from = from_of(now);
    if (from != NULL) {
        gone_add(index, from);
    }
    now->slack_bytes += charge_of(now->n_homes);
    gone_add(index, now);
    index->given_back = 0;
    index->giving_to = 0;
    index->n_keys = 0;
    index->n_dead = 0;
    index->n_foretold = 0;
}

bool hps_host_index_lingers(const struct hps_host_index *index)
{
    return index->gone != NULL;
}
