/* SPDX-License-Identifier: Apache-2.0
 *
 * Single flight: lookups of one version that miss the same key at the same time fetch it once. The
 * first lookup *leads* the key and fetches it. Other lookups wait for the leader, and each gets a
 * copy of the row. But if an update has changed the key since the leader began (stamps.h), the
 * other lookups fetch the key themselves. A lookup fetches all keys that it leads before it waits
 * for other lookups, so lookups never wait in a circle. Thread-safe; no lock is held during a call
 * of a store.
 *
 *     join ─┬─▶ LEADS ── fetch ─┬─ land ──▶ ALONE; waiting keys become FOUND or ABSENT
 *           │                   └─ leave ─▶ ALONE; the first waiting key becomes LEADS
 *           ├─▶ WAITS ─┬─ the leader lands ──▶ FOUND or ABSENT
 *           │          ├─ the leader leaves ─▶ LEADS if this key waited first, else WAITS
 *           │          └─ leave ─▶ ALONE
 *           └─▶ ALONE (an update has changed the key): fetch it without sharing
 */
#ifndef HPS_CACHE_VERSION_FLIGHT_H
#define HPS_CACHE_VERSION_FLIGHT_H

#include <stdatomic.h>

#include "base/lock.h"
#include "base/status.h"
#include "base/types.h"
#include "cache/version/stamps.h"

struct hps_flight; /* the keys of one version that are being fetched */

enum hps_flight_state {
    HPS_FLIGHT_ALONE, /* the fetch of the key is not shared, or no longer shared */
    HPS_FLIGHT_LEADS, /* this lookup fetches the key, also for lookups that wait for it */
    HPS_FLIGHT_WAITS, /* another lookup fetches the key */
    HPS_FLIGHT_FOUND, /* another lookup has found the row, and copied it to `row` */
    HPS_FLIGHT_ABSENT /* another lookup has found that no tier has the key */
};

/* Counts the keys of one lookup that wait for other lookups. It may live on the stack. */
struct hps_flight_caller {
    struct hps_lock lock;
    struct hps_cond changed;
    uint32_t n_waiting; /* keys in the state WAITS */
    /* Keys that changed from WAITS to LEADS and were not yet passed to hps_flight_take_promoted. */
    uint32_t n_promoted;
};

/* One key of a lookup. The memory belongs to the lookup. It must stay valid until hps_flight_land
 * or hps_flight_leave has been called for the key. */
struct hps_flight_key {
    /* set by the lookup before it joins */
    hps_key key;
    uint8_t *row; /* [row_bytes] destination of the row */
    uint32_t row_bytes;
    uint32_t table_id;
    uint64_t since; /* hps_stamps_now, read before the lookup fetches any key (stamps.h) */

    _Atomic uint8_t state; /* enum hps_flight_state; the lookup may read it at any time */
    uint8_t tier;          /* set in the state FOUND: enum hps_tier_kind of the tier with the row */
    struct hps_flight_caller *caller;
    struct hps_flight_key *next;    /* LEADS: next in the hash chain; WAITS: next waiting key */
    struct hps_flight_key *waiting; /* used in the state LEADS: list of the same key of the other
                                       lookups, which wait for this one; in order of arrival */
    struct hps_flight_key *last;    /* used in the state LEADS: the last key of `waiting` */
};

/* Returns NULL if there is no memory. */
struct hps_flight *hps_flight_new(void);
/* Every key must have landed or left. No effect if flight is NULL. */
void hps_flight_free(struct hps_flight *flight);

void hps_flight_caller_begin(struct hps_flight_caller *caller);
/* Every key of the caller must have landed or left. */
void hps_flight_caller_end(struct hps_flight_caller *caller);

/* Share the fetch of a key. Returns LEADS, WAITS or ALONE. If it returns WAITS, key->state may have
 * changed again before the call returns. */
enum hps_flight_state hps_flight_join(struct hps_flight *flight, struct hps_flight_caller *caller,
                                      const struct hps_stamps *stamps, struct hps_flight_key *key);

/* Pass on the result of a fetch: copy `row` to the lookups that wait for the key. row NULL: no tier
 * has the key. The caller also inserts the row into higher tiers; the waiting lookups do not. No
 * effect if this caller does not lead the key. */
void hps_flight_land(struct hps_flight *flight, const struct hps_flight_caller *caller,
                     uint32_t table_id, hps_key key, const uint8_t *row, uint8_t tier);

/* Give up a key in any state. Afterwards no other thread writes to *key or to key->row. */
void hps_flight_leave(struct hps_flight *flight, struct hps_flight_key *key);

/* Wait until no key of the caller is in the state WAITS, or until a key has changed from WAITS to
 * LEADS. Waits for at most max_us microseconds. Returns false if neither has happened. */
bool hps_flight_wait(struct hps_flight_caller *caller, uint32_t max_us);
/* Report that the lookup has noticed the change of n more of its keys from WAITS to LEADS.
 * hps_flight_wait no longer returns because of these n keys. */
void hps_flight_take_promoted(struct hps_flight_caller *caller, uint32_t n);

#endif
